# SPDX-License-Identifier: Apache-2.0
"""A model's shape with an artificial vocabulary, for comparisons of speed: config.json and tokenizer.json for `sluice serve
--load-format dummy`, and a server that runs during a measurement. No weights are needed."""
import contextlib
import json
import os
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

SHAPES = {
    "1b": dict(layers=16, hidden=2048, heads=32, kv_heads=8, head=64, ffn=8192, vocab=128256, tied=True),
    "8b": dict(layers=32, hidden=4096, heads=32, kv_heads=8, head=128, ffn=14336, vocab=128256, tied=False),
    "tiny": dict(layers=2, hidden=256, heads=4, kv_heads=2, head=64, ffn=512, vocab=1000, tied=False),
}
CONTEXT = 131072
START_S = 120


def words(s):
    first = ["<unk>", "<s>", "</s>", "<0x0A>"]  # Texts of byte tokens may be invalid UTF-8, so only the required one exists.
    return first + ["t%d" % i for i in range(len(first), s["vocab"])]


def config(shape):
    s = SHAPES[shape]
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": s["vocab"],
            "hidden_size": s["hidden"], "intermediate_size": s["ffn"], "num_hidden_layers": s["layers"],
            "num_attention_heads": s["heads"], "num_key_value_heads": s["kv_heads"], "head_dim": s["head"],
            "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "max_position_embeddings": CONTEXT,
            "tie_word_embeddings": s["tied"], "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2,
            "hidden_act": "silu"}


def tokenizer(shape):
    """Every id has text, so that every token gives an event."""
    vocab = {word: i for i, word in enumerate(words(SHAPES[shape]))}
    as_is = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    special = [{"id": vocab[word], "content": word, **as_is} for word in ("<unk>", "<s>", "</s>")]
    return {"version": "1.0", "added_tokens": special, "normalizer": None, "pre_tokenizer": None, "decoder": None,
            "model": {"type": "BPE", "vocab": vocab, "merges": [], "unk_token": "<unk>"}}


def write_folder(folder, shape):
    fast = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    for name, content in (("config.json", config(shape)), ("tokenizer.json", tokenizer(shape)), ("tokenizer_config.json", fast)):
        with open(os.path.join(folder, name), "w") as f:
            json.dump(content, f)


def is_up(port):
    try:
        return urllib.request.urlopen("http://127.0.0.1:%d/health" % port, timeout=5).status == 200
    except (urllib.error.URLError, OSError):
        return False


@contextlib.contextmanager
def serving(command, port, start_s=START_S):
    """Runs the command's server during the `with` block; None, with a message, if it does not start within start_s."""
    print("== %s" % " ".join(command), flush=True)
    with tempfile.TemporaryFile() as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            end = time.monotonic() + start_s
            while not is_up(port) and server.poll() is None and time.monotonic() < end:
                time.sleep(0.1)
            if not is_up(port):
                log.seek(0)
                print("it did not start:\n%s" % log.read()[-2000:].decode(errors="replace"))
                yield None
                return
            yield server
        finally:
            server.terminate()
            try:
                server.wait(20)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
