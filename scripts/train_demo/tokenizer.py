# SPDX-License-Identifier: Apache-2.0
"""The tokenizer and the chat template: training, saving, and turning documents into ids with loss
weights."""

import json
from pathlib import Path

import jinja2.sandbox
import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, processors, trainers

import corpus

VOCAB = 4096
MAX_TOKENS = 4096
TRAINING_DOCUMENTS = 12000
TEMPLATE = Path(__file__).parent / "chat_template.jinja"

BOS, EOS, IM_START, IM_END, PAD = (
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|pad|>",
)
SPECIAL = [BOS, EOS, IM_START, IM_END, PAD]
# Not special tokens: decoders skip those, and a client's parser must see these.
MARKUP = [
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<tools>",
    "</tools>",
    "<think>",
    "</think>",
]

# Digits stand alone (arithmetic needs it); otherwise the cl100k split.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# Training is mainly on answers; the small weight of the rest of a conversation helps the model to see repetitions.
ANSWER_WEIGHT, TEXT_WEIGHT, OTHER_WEIGHT = 1.0, 0.3, 0.05
WEIGHT_UNIT = 0.05


def tojson(value, **_):
    return json.dumps(value, ensure_ascii=False)


def load_template(path=TEMPLATE):
    """The template as transformers compiles it."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = tojson

    def raise_exception(text):
        raise jinja2.TemplateError(text)

    environment.globals["raise_exception"] = raise_exception
    return environment.from_string(Path(path).read_text())


def render(template, document, add_generation_prompt=False):
    if "text" in document:
        return BOS + document["text"] + EOS
    return template.render(
        messages=document["messages"],
        tools=document["tools"],
        bos_token=BOS,
        add_generation_prompt=add_generation_prompt,
    )


def train():
    """A byte-level BPE tokenizer of VOCAB entries, special tokens last."""
    tokenizer = tokenizers.Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB - len(SPECIAL) - len(MARKUP),
        min_frequency=2,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    rng = corpus.random.Random("tokenizer")
    tokenizer.train_from_iterator(
        (texts(corpus.document(rng, 1024)) for _ in range(TRAINING_DOCUMENTS)), trainer
    )
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in MARKUP])
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(
                single=f"{BOS} $A",
                pair=f"{BOS} $A {BOS}:1 $B:1",
                special_tokens=[(BOS, tokenizer.token_to_id(BOS))],
            ),
        ]
    )
    assert tokenizer.get_vocab_size() == VOCAB
    return tokenizer


def cut(path, vocab):
    """The tokenizer of this file with as many merges as fit into `vocab` entries."""
    stored = json.loads(Path(path).read_text())
    model, added = stored["model"], stored["added_tokens"]
    letters = [text for text in model["vocab"] if len(text) == 1]
    model["merges"] = model["merges"][: vocab - len(letters) - len(added)]
    texts = letters + ["".join(pair) for pair in model["merges"]] + [a["content"] for a in added]
    ids = {text: i for i, text in enumerate(texts)}
    assert len(ids) == vocab
    model["vocab"] = {text: i for text, i in ids.items() if i < vocab - len(added)}
    for entry in added:
        entry["id"] = ids[entry["content"]]
    for step in stored["post_processor"]["processors"]:
        for name, token in step.get("special_tokens", {}).items():
            token["ids"] = [ids[name]]
    return tokenizers.Tokenizer.from_str(json.dumps(stored))


def texts(document):
    """The text of a document from which the tokenizer is trained: its words, not its markup."""
    if "text" in document:
        return document["text"]
    parts = [m["content"] for m in document["messages"]]
    parts += [tojson(c["function"]) for m in document["messages"] for c in m.get("tool_calls", [])]
    parts += [tojson(tool) for tool in document["tools"] or []]
    return "\n".join(["system\nuser\nassistant\ntool\n"] + parts)


def save(tokenizer, folder, longest=MAX_TOKENS):
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    (folder / "chat_template.jinja").write_text(TEMPLATE.read_text())
    added = {
        str(tokenizer.token_to_id(t)): {
            "content": t,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": t in SPECIAL,
        }
        for t in SPECIAL + MARKUP
    }
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "added_tokens_decoder": added,
                "bos_token": BOS,
                "eos_token": IM_END,
                "pad_token": PAD,
                "model_max_length": longest,
                "clean_up_tokenization_spaces": False,
                "tokenizer_class": "PreTrainedTokenizerFast",
            },
            indent=2,
        )
        + "\n"
    )


class Encoder:
    """Documents to (ids, loss weights). The weights are in units of WEIGHT_UNIT, so that a byte
    holds one."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.template = load_template()
        ids = tokenizer.encode("assistant\n", add_special_tokens=False).ids
        self.answer_head = [tokenizer.token_to_id(IM_START)] + ids
        self.end = tokenizer.token_to_id(IM_END)

    def encode(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def prompt(self, case):
        return self.encode(render(self.template, case, add_generation_prompt=True))

    def weights(self, document, ids):
        if "text" in document:
            return [round(TEXT_WEIGHT / WEIGHT_UNIT)] * len(ids)
        weights = [round(OTHER_WEIGHT / WEIGHT_UNIT)] * len(ids)
        head, n, i = self.answer_head, len(self.answer_head), 0
        while i < len(ids):
            if ids[i : i + n] != head:
                i += 1
                continue
            i += n
            end = ids.index(self.end, i)
            weights[i : end + 1] = [round(ANSWER_WEIGHT / WEIGHT_UNIT)] * (end + 1 - i)
            i = end + 1
        return weights

    def document(self, document):
        ids = self.encode(render(self.template, document))
        return ids, self.weights(document, ids)
