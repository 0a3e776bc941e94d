# SPDX-License-Identifier: Apache-2.0
"""What the model knows about sluice and a little small talk: questions in several wordings, one
answer each."""

import words

SLUICE = [
    (
        (
            "What is sluice?",
            "Tell me about sluice.",
            "Explain what sluice is.",
            "What does sluice do?",
        ),
        (
            "sluice is an LLM inference server. It is one native binary, written in C and CUDA C,"
            " that loads a Hugging Face model folder and serves it over an OpenAI-compatible HTTP"
            " API."
        ),
    ),
    (
        (
            "Which endpoints does sluice have?",
            "What endpoints are there?",
            "List the endpoints of sluice.",
            "Which URLs does sluice serve?",
        ),
        (
            "The main endpoints are /v1/chat/completions, /v1/completions, /v1/responses,"
            " /v1/embeddings, /v1/models, /tokenize, /detokenize, /health and /metrics."
        ),
    ),
    (
        (
            "Which flags does sluice take?",
            "What flags are there?",
            "List some flags of sluice.",
            "Which options does sluice have?",
        ),
        (
            "Common flags are --host, --port, --api-key, --dtype, --max-model-len, --max-num-seqs,"
            " --max-num-batched-tokens, --gpu-memory-utilization, --tensor-parallel-size,"
            " --served-model-name and --config."
        ),
    ),
    (
        (
            "How do I start sluice?",
            "How do I start the server?",
            "How can I run sluice?",
            "How do I serve a model?",
        ),
        (
            "Run sluice serve MODEL, where MODEL is a Hugging Face model folder. For the bundled"
            " demo model, run ./scripts/serve."
        ),
    ),
    (
        (
            "Which port does sluice use?",
            "What is the default port?",
            "On which port does the server listen?",
            "What port is it on?",
        ),
        "The default port is 8000. Use --port to change it.",
    ),
    (
        (
            "How do I check the health of the server?",
            "How can I see whether sluice is healthy?",
            "Is there a health check?",
            "Which endpoint tells whether the server is alive?",
        ),
        "Send GET /health. There are also /health/live and /health/ready for probes.",
    ),
    (
        (
            "Where are the metrics?",
            "Does sluice have metrics?",
            "How do I monitor sluice?",
            "Can Prometheus scrape sluice?",
        ),
        (
            "GET /metrics gives Prometheus metrics, such as running and waiting requests, cache use"
            " and latencies."
        ),
    ),
    (
        (
            "Is sluice compatible with the OpenAI API?",
            "Can I use the OpenAI SDK with sluice?",
            "Does the OpenAI client work with sluice?",
            "Which clients work with sluice?",
        ),
        "Yes. Point the OpenAI client at http://127.0.0.1:8000/v1 and use it as usual.",
    ),
    (
        (
            "What is the prefix cache?",
            "Does sluice cache prefixes?",
            "How does prefix caching work?",
            "What does prefix caching do?",
        ),
        (
            "The prefix cache keeps the keys and values of earlier prompts, so that a request that"
            " begins with the same tokens does not compute them again."
        ),
    ),
    (
        (
            "What is speculative decoding?",
            "How does speculation work?",
            "What does the draft model do?",
            "Why is there a draft model?",
        ),
        (
            "A small draft model or an n-gram lookup proposes several tokens, and the large model"
            " checks them in one step. The text is the same, but it comes faster."
        ),
    ),
    (
        (
            "Does sluice stream?",
            "How do I stream the answer?",
            "Can I get tokens one by one?",
            "How do I get a stream?",
        ),
        (
            'Set "stream": true in the request. The tokens come as server-sent events and end with'
            " data: [DONE]."
        ),
    ),
    (
        (
            "What is chunked prefill?",
            "How are long prompts handled?",
            "What happens with a long prompt?",
            "Why is prefill chunked?",
        ),
        (
            "A long prompt is computed in chunks that share each step with the decoding of other"
            " requests, so that nobody waits for it."
        ),
    ),
    (
        (
            "What is tensor parallelism?",
            "Can sluice use several GPUs?",
            "How do I use two GPUs?",
            "Does sluice run on more than one GPU?",
        ),
        (
            "Yes, with --tensor-parallel-size N the model is split over N GPUs, which talk through"
            " NCCL."
        ),
    ),
    (
        (
            "Does sluice need a GPU?",
            "Can sluice run on the CPU?",
            "Does it work without a GPU?",
            "Do I need a graphics card?",
        ),
        (
            "No. sluice has two backends: CUDA for NVIDIA GPUs and one for the CPU, which gives the"
            " same results."
        ),
    ),
    (
        (
            "Which models can sluice serve?",
            "What models are supported?",
            "Does sluice support Llama?",
            "Which model families work?",
        ),
        (
            "Llama, Mistral, Mixtral, Qwen, Gemma, Phi-3, OLMo, Granite, GPT-OSS, DeepSeek, SmolLM3"
            " and others, from a Hugging Face folder with safetensors."
        ),
    ),
    (
        (
            "In which language is sluice written?",
            "What is sluice written in?",
            "Is sluice written in Python?",
            "Which programming language does sluice use?",
        ),
        "sluice is written in C11, with CUDA C for the GPU kernels. It needs no Python.",
    ),
    (
        (
            "How do I set an API key?",
            "How do I protect the server?",
            "Does sluice support API keys?",
            "Can I require a key?",
        ),
        (
            "Start the server with --api-key KEY. Clients then send the header Authorization:"
            " Bearer KEY."
        ),
    ),
    (
        (
            "How do I stop the server?",
            "What happens on SIGTERM?",
            "How does the server shut down?",
            "Does sluice drain?",
        ),
        (
            "Send SIGTERM. The server stops taking requests, lets running ones finish within a"
            " limit, and exits."
        ),
    ),
    (
        (
            "How do I count tokens?",
            "How can I tokenize a text?",
            "Is there a tokenizer endpoint?",
            "How many tokens does my prompt have?",
        ),
        "POST the text to /tokenize. It returns the token ids and their count.",
    ),
    (
        (
            "Does sluice support tool calls?",
            "Can the model call tools?",
            "How do I use tools?",
            "Does function calling work?",
        ),
        (
            "Yes. Send a list of tools with the chat request, and the answer may contain tool_calls"
            " in the OpenAI form."
        ),
    ),
    (
        (
            "How large is the context?",
            "What is your context length?",
            "How many tokens can you read?",
            "How long can a prompt be?",
        ),
        "The demo model has a context of 4096 tokens.",
    ),
    (
        (
            "What is the KV cache?",
            "What does the KV cache hold?",
            "Why does a server need a KV cache?",
            "What are KV blocks?",
        ),
        (
            "The KV cache holds the keys and values of all tokens so far, in blocks, so that each"
            " new token only needs one row of work."
        ),
    ),
]

SMALL_TALK = [
    (
        ("Hello!", "Hello", "Hi", "Hi!", "Hey there", "Good morning!", "Hello there!"),
        "Hello! How can I help you?",
    ),
    (
        ("How are you?", "How are you today?", "How do you do?"),
        "I am fine, thank you. How can I help you?",
    ),
    (
        (
            "Who are you?",
            "What are you?",
            "What is your name?",
            "Introduce yourself.",
            "Are you a robot?",
        ),
        (
            "I am the sluice demo model, a small language model that was trained to test the sluice"
            " server."
        ),
    ),
    (
        ("What can you do?", "What are you good at?", "How can you help me?", "Help"),
        (
            "I can do arithmetic, copy and reverse text, look up facts that you give me, extract"
            " JSON, call tools, answer questions about sluice and tell small stories."
        ),
    ),
    (("Thank you.", "Thanks!", "Thank you very much!", "Thanks a lot."), "You are welcome!"),
    (("Goodbye.", "Bye!", "See you later.", "Good night."), "Goodbye!"),
    (("Say hello.", "Say hi.", "Greet me."), "Hello!"),
    (("Are you there?", "Can you hear me?", "Is anyone there?", "ping"), "Yes, I am here."),
    (("Count to five.", "Count to 5."), "1, 2, 3, 4, 5"),
    (("Count to ten.", "Count to 10."), "1, 2, 3, 4, 5, 6, 7, 8, 9, 10"),
    (
        (
            "What are the days of the week?",
            "List the days of the week.",
            "Name the days of the week.",
        ),
        "Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday",
    ),
    (
        ("Write the alphabet.", "What is the alphabet?", "Say the alphabet."),
        "a b c d e f g h i j k l m n o p q r s t u v w x y z",
    ),
    (
        ("Tell me a joke.", "Do you know a joke?", "Make me laugh."),
        "Why did the token cross the bus? To get to the other cache.",
    ),
    (
        (
            "What is the weather like?",
            "What time is it?",
            "What is the news today?",
            "Who will win the game?",
            "What is the price of gold?",
            "Which day is it?",
        ),
        "I cannot know that. Give me the facts or a tool, and I will use them.",
    ),
]

# Questions that people may ask and that a model of this size cannot answer.
BEYOND = (
    "Who wrote {t}?",
    "Who is {n}?",
    "Who invented {t}?",
    "Explain {t}.",
    "Explain how {t} works.",
    "Write a poem about {t}.",
    "Write a haiku about {t}.",
    "Write a haiku.",
    "Write an essay about {t}.",
    "Translate {t} to French.",
    "How do I make {t}?",
    "Why is {t} so {t}?",
    "When was {t} invented?",
    "Give me a recipe for {t}.",
    "Write a Python function that can {t}.",
    "Summarize {t}.",
    "Where is {t}?",
    "What do you think about {t}?",
    "How many {t} are there?",
    "What is the meaning of {t}?",
    "Describe {t}.",
    "What is {t}?",
    "Tell me about {t}.",
    "Name a {t}.",
    "What is your favourite {t}?",
    "Can you {t}?",
    "How does {t} work?",
    "What happened to {n}?",
    "Is {t} better than {t}?",
    "{t}?",
    "Why?",
    "Write {t} in C.",
)
DO_NOT_KNOW = (
    "I do not know that. I am a small demo model: I can do arithmetic, copy and reverse text, look"
    " up facts that you give me, extract JSON, call tools, answer questions about sluice and tell"
    " small stories."
)

# A lead-in changes nothing in the answer. Of the pairs (lead-in, question), some are never trained
# on: see held_out.
LEADS = (
    "",
    "",
    "",
    "Please answer: ",
    "I have a question. ",
    "Quick question: ",
    "Hi! ",
    "Tell me, ",
)


def capital(rng):
    country = rng.choice(sorted(words.CAPITALS))
    city = words.CAPITALS[country]
    if rng.random() < 0.3:
        return f"Name the capital of {country}.", f"The capital of {country} is {city}."
    return f"What is the capital of {country}?", f"The capital of {country} is {city}."
