# SPDX-License-Identifier: Apache-2.0
"""Broken model folders: one sentence that names the file and the tensor, exit 1, never a crash; and folders that are unusual
but valid."""
import json
import math
import os
import random
import shutil
import struct
import subprocess
from statistics import median

import pytest

import golden
from nightly import NIGHTLY

SOURCE = os.path.join(golden.GOLDEN, "llama-3")
MOE = os.path.join(golden.GOLDEN, "qwen3-moe")
REQUEST = json.dumps({"prompt_token_ids": [5, 6, 7], "max_tokens": 4, "temperature": 0, "ignore_eos": True}) + "\n"
WEIGHTS = "model.safetensors"
NORM = "model.layers.1.input_layernorm.weight"
DOWN = "model.layers.1.mlp.down_proj.weight"
HEAD = "lm_head.weight"


def run(folder, *flags, timeout=60):
    return subprocess.run([*golden.RUN, str(folder), "--json", "--log-level", "error", *flags],
                          input=REQUEST, capture_output=True, text=True, timeout=timeout)


def tokens(folder, *flags):
    done = run(folder, *flags)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["outputs"][0]["token_ids"]


class Checkpoint:
    """A copy of a folder with one weight file, parsed into its tensors."""

    def __init__(self, folder, source=SOURCE):
        shutil.copytree(source, folder)
        self.folder = str(folder)
        with open(self.path(WEIGHTS), "rb") as f:
            raw = f.read()
        n = struct.unpack("<Q", raw[:8])[0]
        self.header, self.data = json.loads(raw[8:8 + n]), raw[8 + n:]
        self.config = json.load(open(self.path("config.json")))

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, header_text=None, length=None, name=WEIGHTS, data=None):
        text = (header_text if header_text is not None else json.dumps(self.header)).encode()
        with open(self.path(name), "wb") as f:
            f.write(struct.pack("<Q", len(text) if length is None else length) + text)
            f.write(self.data if data is None else data)

    def write_config(self, text=None):
        with open(self.path("config.json"), "w") as f:
            f.write(json.dumps(self.config) if text is None else text)

    def shards(self, n, index):
        """The same weights in n files."""
        names = [k for k in self.header if k != "__metadata__"]
        where = {}
        for i in range(n):
            header, data = {}, b""
            for name in names[i::n]:
                begin, end = self.header[name]["data_offsets"]
                header[name] = dict(self.header[name], data_offsets=[len(data), len(data) + end - begin])
                data += self.data[begin:end]
                where[name] = f"model-{i + 1:05}-of-{n:05}.safetensors"
            self.write(json.dumps(header), name=f"model-{i + 1:05}-of-{n:05}.safetensors", data=data)
        os.unlink(self.path(WEIGHTS))
        if index:
            with open(self.path(WEIGHTS + ".index.json"), "w") as f:
                json.dump({"metadata": {}, "weight_map": where}, f)

    def retype(self, dtype_of):
        """Converts each bf16 tensor to dtype_of(its index, whether f16 is exact); returns the resulting dtypes."""
        header, data = {}, b""
        for i, name in enumerate(k for k in self.header if k != "__metadata__"):
            tensor = self.header[name]
            raw = self.data[slice(*tensor["data_offsets"])]
            words = struct.unpack(f"<{len(raw) // 2}H", raw)
            assert tensor["dtype"] == "BF16"
            wide = struct.pack(f"<{len(words)}I", *(w << 16 for w in words))
            values = struct.unpack(f"<{len(words)}f", wide)
            half = struct.pack(f"<{len(words)}e", *values)
            dtype = dtype_of(i, values == struct.unpack(f"<{len(words)}e", half))
            raw = {"BF16": raw, "F32": wide, "F16": half}[dtype]
            header[name] = {"dtype": dtype, "shape": tensor["shape"], "data_offsets": [len(data), len(data) + len(raw)]}
            data += raw
        self.header, self.data = header, data
        self.write()
        return {t["dtype"] for t in header.values()}


def missing_tensor(c):
    del c.header[NORM]
    c.write()


def missing_of_shards(c):
    del c.header[NORM]
    c.shards(3, index=True)


def missing_head(c):
    assert c.config["tie_word_embeddings"] is False
    del c.header[HEAD]
    c.write()


def wrong_shape(c):
    c.header[DOWN]["shape"].reverse()
    c.write()


def shape_beyond_data(c):
    c.header[DOWN]["shape"][0] *= 2
    c.write()


def negative_shape(c):
    c.header[DOWN]["shape"][0] = -4
    c.write()


def overflowing_shape(c):
    c.header[DOWN]["shape"] = [1 << 40, 1 << 40]
    c.write()


def overlapping(c):
    c.header[DOWN]["data_offsets"] = c.header["model.layers.0.mlp.down_proj.weight"]["data_offsets"]
    c.write()


def beyond_the_end(c):
    begin, end = c.header[DOWN]["data_offsets"]
    c.header[DOWN]["data_offsets"] = [begin + len(c.data), end + len(c.data)]
    c.write()


def backwards(c):
    c.header[DOWN]["data_offsets"].reverse()
    c.write()


def unknown_dtype(c):
    c.header[DOWN]["dtype"] = "F8_E4M3"
    c.header[DOWN]["data_offsets"][1] = (sum(c.header[DOWN]["data_offsets"])) // 2
    c.write()


def truncated_data(c):
    c.write(data=c.data[:-100])


def truncated_header(c):
    with open(c.path(WEIGHTS), "r+b") as f:
        f.truncate(200)


def empty_file(c):
    open(c.path(WEIGHTS), "w").close()


def huge_header(c):
    c.write(length=1 << 62)


def broken_header(c):
    c.write("{" + "x" * 100)


def header_of_numbers(c):
    c.write(json.dumps({DOWN: 5}))


def no_weights(c):
    os.unlink(c.path(WEIGHTS))


def no_tensors(c):
    c.write("{}")


def index_without_file(c):
    c.shards(3, index=True)
    os.unlink(c.path("model-00002-of-00003.safetensors"))


def index_outside(c):
    c.shards(2, index=True)
    path = c.path(WEIGHTS + ".index.json")
    index = json.load(open(path))
    index["weight_map"][DOWN] = "../../etc/passwd"
    json.dump(index, open(path, "w"))


def a_pipe(name):
    def change(c):
        os.unlink(c.path(name))
        os.mkfifo(c.path(name))
    return change


def no_config(c):
    os.unlink(c.path("config.json"))


def broken_config(c):
    c.write_config("{\"model_type\": \"llama\", ")


def config_is_a_list(c):
    c.write_config("[]")


def config_value(**values):
    def change(c):
        c.config.update(values)
        c.write_config()
    return change


def generation_value(**values):
    def change(c):
        with open(c.path("generation_config.json"), "w") as f:
            json.dump(values, f)
    return change


def rope(**values):
    def change(c):
        c.config.pop("rope_scaling", None)
        c.config["rope_parameters"] = {"rope_theta": 10000.0, **values}
        c.write_config()
    return change


BROKEN = {  # defect: what the error must name
    missing_tensor: [WEIGHTS, NORM],
    missing_of_shards: ["model.safetensors.index.json", NORM],
    missing_head: [WEIGHTS, HEAD],
    wrong_shape: [WEIGHTS, DOWN],
    shape_beyond_data: [WEIGHTS, DOWN],
    negative_shape: [WEIGHTS, DOWN],
    overflowing_shape: [WEIGHTS, DOWN],
    overlapping: [WEIGHTS, "down_proj.weight"],
    beyond_the_end: [WEIGHTS, DOWN],
    backwards: [WEIGHTS, DOWN],
    unknown_dtype: [WEIGHTS, DOWN, "F8_E4M3"],
    truncated_data: [WEIGHTS],
    truncated_header: [WEIGHTS],
    empty_file: [WEIGHTS],
    huge_header: [WEIGHTS],
    broken_header: [WEIGHTS],
    header_of_numbers: [WEIGHTS],
    no_weights: ["safetensors"],
    no_tensors: ["safetensors", "embed_tokens"],
    index_without_file: ["model-00002-of-00003.safetensors"],
    index_outside: ["outside", "../../etc/passwd"],
    no_config: ["config.json"],
    a_pipe("config.json"): ["config.json", "regular"],
    a_pipe(WEIGHTS): [WEIGHTS, "regular"],
    broken_config: ["config.json"],
    config_is_a_list: ["config.json"],
    config_value(model_type="bloom"): ["config.json", "bloom", "llama"],
    config_value(model_type=7): ["config.json", "model_type"],
    config_value(hidden_size="64"): ["config.json", "hidden_size"],
    config_value(num_hidden_layers=0): ["config.json", "num_hidden_layers"],
    config_value(num_hidden_layers=10 ** 30): ["config.json", "num_hidden_layers"],
    config_value(num_hidden_layers=9): ["model.layers."],
    config_value(vocab_size=100): ["embed_tokens"],
    config_value(num_key_value_heads=3): ["config.json", "heads"],
    config_value(hidden_act="tanhshrink"): ["config.json", "tanhshrink"],
    config_value(quantization_config={"quant_method": "quip"}): ["config.json", "quip"],
    config_value(torch_dtype="int8", dtype="int8"): ["config.json", "int8"],
    config_value(torch_dtype="torch.int8", dtype="torch.int8"): ["config.json", "'torch.int8'"],
    rope(rope_type="spiral"): ["spiral"],
    rope(rope_type="linear", factor=0.0): ["factor"],
    rope(rope_type="longrope", short_factor=[1.0], long_factor=[1.0]): ["longrope"],
    rope(rope_type="longrope", short_factor=[1e-300] * 8, long_factor=[1.0] * 8): ["short_factor", "a list of numbers from"],
    rope(rope_type="longrope", short_factor=[1.0] * 8, long_factor=["1"] * 8): ["long_factor", "a list of numbers from"],
    rope(rope_type="llama3", factor=8.0, low_freq_factor=4.0, high_freq_factor=1.0): ["llama3"],
    rope(rope_type="linear"): ["linear", "factor"],
    rope(rope_type="yarn", factor="8"): ["config.json", "rope_parameters.factor", "a number"],
    config_value(rope_parameters="yarn"): ["config.json", "rope_parameters", "an object"],
    config_value(rms_norm_eps="1e-5"): ["config.json", "rms_norm_eps", "a number"],
    config_value(rms_norm_eps=-1.0): ["config.json", "rms_norm_eps", "from 0 to 1"],
    config_value(tie_word_embeddings="no"): ["config.json", "tie_word_embeddings", "true or false"],
    config_value(layer_types="full_attention"): ["config.json", "layer_types", "a list"],
    config_value(eos_token_id="</s>"): ["config.json", "eos_token_id", "an integer or a list"],
    config_value(model_type="mistral", sliding_window=(1 << 32) + 5): ["config.json", "sliding_window"],
    config_value(max_position_embeddings=1 << 40): ["config.json", "max_position_embeddings"],
    config_value(model_type="smollm3", no_rope_layers=[1]): ["config.json", "no_rope_layers"],
    config_value(is_causal=False): ["config.json", "is_causal"],
    config_value(model_type="gpt_oss", num_local_experts=2, num_experts_per_tok=1, swiglu_limit=-3.0): ["swiglu_limit", "from 0"],
    config_value(model_type="mixtral", num_local_experts=1025, num_experts_per_tok=2): ["num_local_experts", "from 1 to 1024"],
    config_value(model_type="mixtral", num_local_experts=64, num_experts_per_tok=33): ["num_experts_per_tok", "from 1 to 32"],
    generation_value(temperature="hot"): ["generation_config.json", "temperature", "a number"],
    generation_value(eos_token_id={"id": 2}): ["generation_config.json", "eos_token_id"],
}


@pytest.mark.parametrize("breaks, named", BROKEN.items(), ids=lambda x: getattr(x, "__name__", ""))
def test_a_broken_folder_is_refused_in_one_sentence(breaks, named, tmp_path):
    c = Checkpoint(tmp_path / "model")
    breaks(c)
    done = run(c.folder)
    assert done.returncode == 1, (done.returncode, done.stderr)
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    for word in named:
        assert word in lines[0], lines[0]


def test_a_missing_folder(tmp_path):
    for folder in (tmp_path / "absent", tmp_path, os.path.join(SOURCE, "config.json")):
        done = run(folder)
        assert done.returncode == 1 and len(done.stderr.strip().splitlines()) == 1, done.stderr


def test_a_model_larger_than_any_memory(tmp_path):
    """If the system overcommitted that memory, the process would be killed later."""
    config = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 384}
    full = "embed_tokens: not enough memory" if golden.DEVICE == "cpu" else "embed_tokens: no 8388608 MiB of device memory"
    for values, sentence in [({"max_position_embeddings": 1 << 30, "head_dim": 512}, "rope tables do not fit"),
                             ({"vocab_size": 1 << 24, "hidden_size": 1 << 18, "head_dim": 64}, full)]:
        (tmp_path / "config.json").write_text(json.dumps({**config, **values}))
        done = run(tmp_path, "--load-format", "dummy")
        assert done.returncode == 1 and sentence in done.stderr, done.stderr


@pytest.mark.parametrize("index", [True, False], ids=["index", "no index"])
def test_shards(index, tmp_path):
    c = Checkpoint(tmp_path / "model")
    c.shards(3, index)
    assert tokens(c.folder) == tokens(SOURCE)


def test_an_index_beside_a_single_file_is_ignored(tmp_path):
    """It may belong to deleted shards or to other weights: transformers ignores it, too."""
    c = Checkpoint(tmp_path / "model")
    shutil.copy(c.path(WEIGHTS), c.path("kept"))
    c.shards(3, index=True)
    os.rename(c.path("kept"), c.path(WEIGHTS))
    os.unlink(c.path("model-00002-of-00003.safetensors"))
    assert tokens(c.folder) == tokens(SOURCE)


@pytest.mark.parametrize("name", ["consolidated.safetensors", "adapter_model.safetensors"])
def test_other_weight_files_are_ignored(name, tmp_path):
    """Published folders have copies of the tensors, or those of an adapter; transformers ignores them."""
    c = Checkpoint(tmp_path / "model")
    shutil.copy(c.path(WEIGHTS), c.path(name))
    assert tokens(c.folder) == tokens(SOURCE)
    open(c.path(name), "w").close()
    assert tokens(c.folder) == tokens(SOURCE)
    os.unlink(c.path(name))
    os.rename(c.path(WEIGHTS), c.path(name))
    assert tokens(c.folder) == tokens(SOURCE)


def test_a_header_of_odd_length(tmp_path):
    """With such a header no element of the data is aligned."""
    c = Checkpoint(tmp_path / "model")
    text = json.dumps(c.header)
    c.write(text + " " * (len(text) % 2 + 1))
    assert tokens(c.folder) == tokens(SOURCE)


def as_old(config):
    """rope_theta and rope_scaling, torch_dtype."""
    rope = config.pop("rope_parameters", None)
    if rope:
        config["rope_theta"] = rope.pop("rope_theta")
        config["rope_scaling"] = dict(rope, type=rope.pop("rope_type"))
    config["torch_dtype"] = config.pop("dtype", config.get("torch_dtype"))


def as_new(config):
    """rope_parameters, dtype."""
    scaling = config.pop("rope_scaling", None)
    if "rope_theta" in config:
        config["rope_parameters"] = dict(scaling or {"rope_type": "default"}, rope_theta=config.pop("rope_theta"))
    config["dtype"] = config.pop("torch_dtype", config.get("dtype"))


@pytest.mark.parametrize("form", [as_old, as_new], ids=["old form", "new form"])
def test_both_config_formats(form, tmp_path):
    c = Checkpoint(tmp_path / "model")
    form(c.config)
    c.write_config()
    assert tokens(c.folder) == tokens(SOURCE)


def test_several_eos_ids_end_a_text(tmp_path):
    c = Checkpoint(tmp_path / "model")
    want = tokens(SOURCE)
    json.dump({"eos_token_id": [2, want[1], 9999]}, open(c.path("generation_config.json"), "w"))
    done = subprocess.run([golden.SLUICE, "generate", c.folder, "--json", "--log-level", "error"],
                          input=json.dumps({"prompt_token_ids": [5, 6, 7], "max_tokens": 4, "temperature": 0}) + "\n",
                          capture_output=True, text=True, timeout=60)
    out = json.loads(done.stdout)["outputs"][0]
    assert out["token_ids"] == want[:2] and out["finish_reason"] == "stop"


ENDS = {  # end-of-text ids of transformers' classes, for configs without any
    "llama": [2], "mistral": [2], "mixtral": [2], "gemma": [1], "gemma2": [1], "gemma3_text": [1], "phi3": [32000],
    "olmo2": [50279], "granite": [2], "deepseek_v2": [2], "deepseek_v3": [1], "smollm3": [128001], "starcoder2": [50256],
    "stablelm": [0], "glm": [151329, 151336, 151338], "glm4": [151329, 151336, 151338], "qwen2": [], "qwen3": [],
    "apertus": [2], "arcee": [128001], "nemotron": [3], "jais2": [150024], "cohere": [], "olmo": [50279], "helium": [2],
    "cwm": [128001, 128008, 128009], "granite_swa": [100257], "youtu": [128001],
    "lfm3": [124900], "olmo_hybrid": [100257], "nanochat": [1], "phi": [2],
    "gpt2": [50256], "gpt_bigcode": [50256], "opt": [2], "gpt_neox": [2], "falcon": [11], "gptj": [50256], "codegen": [50256],
}


def ends(folder, ids):
    """Those of these ids that end a text when they are the only allowed id."""
    lines = [json.dumps({"prompt_token_ids": [5], "max_tokens": 2, "allowed_token_ids": [i]}) for i in ids]
    done = subprocess.run([*golden.RUN, str(folder), "--json", "--log-level", "error", "--load-format", "dummy",
                           "--max-model-len", "16"], input="\n".join(lines), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    outs = [json.loads(line)["outputs"][0] for line in done.stdout.splitlines()]
    return [i for i, o in zip(ids, outs) if o["finish_reason"] == "stop"]


@pytest.mark.parametrize("family", ENDS)
def test_without_an_eos_id_the_classs_default_holds(family, tmp_path):
    must = USUAL[family][0] if family in USUAL else {}
    config = {"model_type": family, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 8, "vocab_size": 151552,
              "intermediate_size": 16, "num_key_value_heads": 8, "head_dim": 8, **must}
    ids = sorted({7, *sum(ENDS.values(), [])})
    (tmp_path / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None or k != "num_attention_heads"}))
    assert ends(tmp_path, ids) == ENDS[family]


def test_the_classs_eos_id_holds_only_if_no_file_has_one(tmp_path):
    config = {"model_type": "llama", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 64}
    wrapped = {"model_type": "some_vlm", "text_config": config}
    for values, generation, want in [(config, None, [2]), ({**config, "eos_token_id": 7}, None, [7]),
                                     ({**config, "eos_token_id": None}, None, []), (config, {"eos_token_id": [5, 9]}, [5, 9]),
                                     (config, {"top_k": 5}, [2]), ({**config, "eos_token_id": 7}, {"eos_token_id": 9}, [7, 9]),
                                     (wrapped, None, [2]), ({**wrapped, "eos_token_id": 9}, None, [9])]:
        (tmp_path / "config.json").write_text(json.dumps(values))
        (tmp_path / "generation_config.json").write_text(json.dumps(generation or {}))
        assert ends(tmp_path, [2, 5, 7, 9]) == want, (values, generation)


@pytest.mark.parametrize("key, value", [("top_p", 0), ("top_p", 1.5), ("repetition_penalty", 0), ("repetition_penalty", -1),
                                        ("temperature", -0.5), ("top_k", -2), ("top_k", -(1 << 40)), ("min_p", 7)])
def test_an_invalid_sampling_default_is_logged_and_ignored(key, value, tmp_path):
    c = Checkpoint(tmp_path / "model")
    request = json.dumps({"prompt_token_ids": [5, 6, 7], "max_tokens": 8, "seed": 3, "ignore_eos": True})
    results = []
    for values in ({"top_k": 50, "top_p": 0.9}, {"top_k": 50, "top_p": 0.9, key: value}, {key: value}, {}):
        generation_value(**values)(c)
        done = subprocess.run([*golden.RUN, c.folder, "--json", "--log-level", "warn"], input=request, capture_output=True,
                              text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        results.append(json.loads(done.stdout)["outputs"])
        told = [line for line in done.stderr.splitlines() if "generation_config.json" in line]
        assert [key in line and "ignored" in line for line in told] == [True] * (key in values and values[key] == value), done.stderr
    assert results[2] == results[3]
    assert key in ("top_k", "top_p") or results[1] == results[0]


def scores(folder, *flags, dtype="float32"):
    """Log-probabilities of a prompt longer than all windows."""
    request = json.dumps({"prompt_token_ids": [7 * i % 380 for i in range(40)], "max_tokens": 0, "prompt_logprobs": True})
    flags = [*flags, "--dtype", dtype] if dtype else flags
    done = subprocess.run([golden.SLUICE, "generate", str(folder), "--json", "--log-level", "error", *flags],
                          input=request, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["prompt_logprobs"]


def off(a, b, kind=max):
    return kind([abs(x - y) for x, y in zip(a[1:], b[1:])])


@pytest.mark.parametrize("family", ["llama-3", "gemma-2", "qwen3-moe", "gpt-oss", "deepseek-v3"])
def test_weights_of_every_dtype(family, tmp_path):
    """Values that all dtypes represent give the same bits; without --dtype the config's dtype is used."""
    source = os.path.join(golden.GOLDEN, family)
    want, rounded = scores(source), scores(source, dtype="bfloat16")
    assert scores(source, dtype=None) == rounded != want
    wide = Checkpoint(tmp_path / "wide", source)
    assert wide.retype(lambda i, fits: "F32") == {"F32"}
    assert scores(wide.folder) == want and scores(wide.folder, dtype="bfloat16") == rounded
    wide.config["dtype"] = wide.config["torch_dtype"] = "float32"
    wide.write_config()
    assert scores(wide.folder, dtype=None) == want
    mixed = Checkpoint(tmp_path / "mixed", source)
    assert mixed.retype(lambda i, fits: ["F32", "BF16", "F16" if fits else "F32"][i % 3]) == {"F32", "BF16", "F16"}
    assert scores(mixed.folder) == want and scores(mixed.folder, dtype="bfloat16") == rounded
    half = Checkpoint(tmp_path / "half", source)
    half.config["dtype"] = half.config["torch_dtype"] = "float16"
    half.write_config()
    assert half.retype(lambda i, fits: "F16") == {"F16"}
    assert off(scores(half.folder), want) < 1e-4
    own = scores(half.folder, dtype=None)
    assert own == scores(half.folder, dtype="float16")
    half.config["dtype"] = half.config["torch_dtype"] = "torch.float16"
    half.write_config()
    assert scores(half.folder, dtype=None) == own
    assert 0 < off(own, want, median) < off(rounded, want, median) / 2  # one token may be routed to another expert


EXPERTS = {"num_experts": 16, "moe_intermediate_size": 16}
MLA = {"kv_lora_rank": 16, "q_lora_rank": None, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8,
       "n_routed_experts": 16, "moe_intermediate_size": 16}
YARN = {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False, "rope_theta": 150000.0,
        "original_max_position_embeddings": 4096}
WHOLE_HEADS = {"head_dim": None}  # the heads fill the hidden size
GPT2 = {"n_inner": 32, "layer_norm_epsilon": 1e-5}
USUAL = {  # required keys, and transformers' defaults for the optional ones
    "mistral": ({}, {"num_key_value_heads": 8, "sliding_window": 4096, "max_position_embeddings": 131072}),
    "mixtral": ({}, {"num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 1e6, "sliding_window": None,
                     "num_local_experts": 8, "num_experts_per_tok": 2}),
    "qwen2_moe": (dict(EXPERTS, shared_expert_intermediate_size=16), {"num_experts_per_tok": 4, "qkv_bias": True}),
    "qwen3": ({}, {"head_dim": 128, "attention_bias": False}),
    "qwen3_moe": (EXPERTS, {"num_key_value_heads": 4, "num_experts_per_tok": 8}),
    "gemma": ({}, {"head_dim": 256, "hidden_act": "gelu_pytorch_tanh", "tie_word_embeddings": True}),
    "gemma2": ({}, {"num_key_value_heads": 4, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "sliding_window": 4096,
                    "query_pre_attn_scalar": 256, "final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0}),
    "gemma3_text": ({"num_attention_heads": None}, {
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 256, "sliding_window": 4096, "sliding_window_pattern": 6, "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            "full_attention": {"rope_type": "default", "rope_theta": 1e6}}}),
    "phi3": ({}, {"rms_norm_eps": 1e-5, "max_position_embeddings": 4096}),
    "olmo2": ({}, {"rms_norm_eps": 1e-5}),
    "granite": ({}, {"attention_multiplier": 1.0}),
    "gpt_oss": ({"num_local_experts": 4}, {"num_key_value_heads": 8, "head_dim": 64, "rms_norm_eps": 1e-5, "sliding_window": 128,
                                           "num_experts_per_tok": 4, "rope_parameters": YARN}),
    "deepseek_v2": (dict(MLA, num_experts_per_tok=2), {"n_shared_experts": 2, "routed_scaling_factor": 1.0}),
    "deepseek_v3": (MLA, {"n_shared_experts": 1, "first_k_dense_replace": 3, "n_group": 8, "topk_group": 4,
                          "num_experts_per_tok": 8, "routed_scaling_factor": 2.5}),
    "smollm3": ({}, {"num_key_value_heads": 4, "rope_theta": 2e6, "tie_word_embeddings": True}),
    "starcoder2": ({}, {"num_key_value_heads": 2, "hidden_act": "gelu_pytorch_tanh", "tie_word_embeddings": True}),
    "glm": ({}, {"num_key_value_heads": 2, "head_dim": 128, "rms_norm_eps": 1.5625e-7, "attention_bias": True}),
    "glm4": ({}, {"num_key_value_heads": 2, "head_dim": 128, "rms_norm_eps": 1.5625e-7, "attention_bias": True}),
    "apertus": ({}, {"hidden_act": "xielu", "rms_norm_eps": 1e-5, "max_position_embeddings": 65536, "rope_parameters": {
        "rope_type": "llama3", "rope_theta": 12e6, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192}}),
    "cohere": ({}, {"layer_norm_eps": 1e-5, "logit_scale": 0.0625, "tie_word_embeddings": True, "use_qk_norm": False,
                    "rope_theta": 5e5}),
    "olmo": ({}, {"clip_qkv": None, "attention_bias": False, "tie_word_embeddings": False}),
    "internlm3": ({}, {"num_key_value_heads": 2, "head_dim": 128, "rms_norm_eps": 1e-5, "qkv_bias": False, "bias": False}),
    "iquestcoder": ({}, {"num_key_value_heads": 8, "head_dim": 128, "rms_norm_eps": 1e-5}),
    "helium": ({"num_key_value_heads": 4, "num_attention_heads": 4}, {"head_dim": 128, "rms_norm_eps": 1e-8, "rope_theta": 1e5}),
    "cwm": ({}, {"num_key_value_heads": 8, "head_dim": 128, "rms_norm_eps": 1e-5, "sliding_window": 8192, "rope_parameters": {
        "rope_type": "llama3", "rope_theta": 1e6, "factor": 16.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192},
        "layer_types": ["full_attention", *["sliding_attention"] * 3, "full_attention", *["sliding_attention"] * 2]}),
    "ministral": ({}, {"num_key_value_heads": 8, "sliding_window": 4096, "max_position_embeddings": 131072}),
    "hyperclovax": ({}, {"attention_multiplier": 8 ** -0.5, "logits_scaling": 1.0, "residual_multiplier": 1.0,
                         "embedding_multiplier": 1.0, "use_post_norm": True}),
    "granite_swa": ({}, {"num_key_value_heads": 4, "rms_norm_eps": 1e-5, "attention_multiplier": 1.0, "sliding_window": 128,
                         "tie_word_embeddings": True, "layer_rope_theta": [1e4] * 7,
                         "layer_types": ["full_attention", *["sliding_attention"] * 3, "full_attention", *["sliding_attention"] * 2]}),
    "vaultgemma": ({}, {"num_key_value_heads": 4, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "sliding_window": 4096,
                        "query_pre_attn_scalar": 256, "final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0}),
    "youtu": ({"num_attention_heads": 16}, {"num_key_value_heads": 16, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64,
                   "qk_nope_head_dim": 128, "v_head_dim": 128, "tie_word_embeddings": True, "rope_interleave": True}),
    "minicpm3": ({}, {"rms_norm_eps": 1e-5, "kv_lora_rank": 256, "q_lora_rank": 768, "qk_rope_head_dim": 32,
                      "qk_nope_head_dim": 64, "v_head_dim": 8, "scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256,
                      "tie_word_embeddings": True}),
    "lfm3": ({}, {"num_key_value_heads": 4, "head_dim": 128, "conv_L_cache": 7, "norm_eps": 1e-5, "sliding_window": 256,
                  "use_sandwich_norm": True, "use_attention_gate": True, "layer_types": [
                      "conv", "conv", "full_attention", "conv", "sliding_attention", "conv", "full_attention"],
                  "rope_parameters": {"sliding_attention": {"rope_type": "default", "rope_theta": 1e4}, "full_attention": {
                      "rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.5}}}),
    "olmo_hybrid": ({}, {"linear_num_key_heads": 8, "linear_num_value_heads": 8, "linear_key_head_dim": 6,
                         "linear_value_head_dim": 12, "linear_conv_kernel_dim": 4, "linear_allow_neg_eigval": True,
                         "layer_types": [*["linear_attention"] * 3, "full_attention", *["linear_attention"] * 3]}),
    "phi": ({}, {"hidden_act": "gelu_new", "layer_norm_eps": 1e-5, "partial_rotary_factor": 0.5, "qk_layernorm": False}),
    "nanochat": ({}, {"hidden_act": "relu2", "final_logit_softcapping": 15.0, "rms_norm_eps": 1e-6}),
    "muse_glimmer_text": ({}, {
        "num_key_value_heads": 2, "head_dim": 128, "rms_norm_eps": 1e-5, "hidden_activation": "silu", "sliding_window": 2048,
        "final_logit_softcapping": 20.0, "qk_scale_factor": 3.87, "output_multiplier": 26 ** -0.5, "post_norm_eps": 1e-8,
        "layer_rope_theta": [1e4, 1e4, 0, 1e4, 1e4, 1e4, 0], "layer_types": [
            "sliding_attention", "sliding_attention", "full_attention", *["sliding_attention"] * 3, "full_attention"]}),
    "arcee": ({}, {"hidden_act": "relu2", "rms_norm_eps": 1e-5, "max_position_embeddings": 4096}),
    "nemotron": ({}, {"hidden_act": "relu2", "norm_eps": 1e-5, "partial_rotary_factor": 0.5}),
    "jais2": ({}, {"hidden_act": "relu2", "layer_norm_eps": 1e-5, "attention_bias": True, "mlp_bias": True}),
    "gpt2": (WHOLE_HEADS, {**GPT2, "activation_function": "gelu_new", "n_positions": 1024, "tie_word_embeddings": True,
                           "scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False}),
    "gpt_bigcode": (WHOLE_HEADS, {**GPT2, "activation_function": "gelu_pytorch_tanh", "n_positions": 1024, "multi_query": True,
                                  "tie_word_embeddings": True, "scale_attn_weights": True}),
    "opt": (WHOLE_HEADS, {"ffn_dim": 32, "activation_function": "relu", "max_position_embeddings": 2048, "enable_bias": True,
                          "do_layer_norm_before": True, "word_embed_proj_dim": None, "layer_norm_elementwise_affine": True,
                          "tie_word_embeddings": True, "_remove_final_layer_norm": False}),
    "gpt_neox": ({**WHOLE_HEADS, "num_attention_heads": 2, "num_key_value_heads": 2}, {"hidden_act": "gelu", "layer_norm_eps": 1e-5, "rotary_pct": 0.25, "rotary_emb_base": 10000,
                               "use_parallel_residual": True, "attention_bias": True, "tie_word_embeddings": False}),
    "falcon": (WHOLE_HEADS, {"ffn_hidden_size": 32, "activation": "gelu", "layer_norm_epsilon": 1e-5, "alibi": False, "bias": False,
                             "new_decoder_architecture": False, "multi_query": True, "parallel_attn": True, "num_kv_heads": 8,
                             "rope_theta": 1e4, "tie_word_embeddings": True, "num_ln_in_parallel_attn": None}),
    "gptj": ({**WHOLE_HEADS, "rotary_dim": 2}, {**GPT2, "activation_function": "gelu_new", "n_positions": 2048}),
    "codegen": ({**WHOLE_HEADS, "rotary_dim": 2}, {**GPT2, "activation_function": "gelu_new", "n_positions": 2048}),
}


def dummy_scores(folder, config):
    folder.mkdir()
    config = {k: v for k, v in config.items() if k != "num_attention_heads" or v}
    (folder / "config.json").write_text(json.dumps(config))
    return scores(folder, "--load-format", "dummy", "--max-model-len", "256")


@pytest.mark.parametrize("family", USUAL)
def test_missing_keys_have_the_classs_defaults(family, tmp_path):
    must, usual = USUAL[family]
    bare = {"model_type": family, "hidden_size": 64, "num_hidden_layers": 7, "num_attention_heads": 8, "vocab_size": 384,
            "intermediate_size": 32, "eos_token_id": 2, **must}
    assert dummy_scores(tmp_path / "bare", bare) == dummy_scores(tmp_path / "full", {**bare, **usual})


def test_a_multimodal_wrapper_may_have_few_keys(tmp_path):
    """As in the first multimodal Gemma 3."""
    text = {"model_type": "gemma3_text", "hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 32,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 24}
    full = {**text, **USUAL["gemma3_text"][1]}
    full.update(vocab_size=262208, sliding_window=24, rope_parameters={
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}})
    del full["rope_scaling"]
    nested = {"model_type": "gemma3", "text_config": text, "eos_token_id": [1, 106], "torch_dtype": "bfloat16"}
    assert dummy_scores(tmp_path / "nested", nested) == dummy_scores(tmp_path / "full", full)


@pytest.mark.parametrize("source, values, types", [
    ("smollm-3", {"use_sliding_window": True, "sliding_window": 8, "no_rope_layers": [1, 0, 1, 0]}, "fsfs"),
    ("qwen2-moe", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2}, "sff"),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2}, "ffss"),
    ("qwen3", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}, "fsss"),
    ("gpt-oss", {"sliding_window": 8}, "sfsf"),
])
def test_windows_without_a_list_of_layer_types(source, values, types, tmp_path):
    """The lists are those that transformers derives from the same values."""
    kinds = {"f": "full_attention", "s": "sliding_attention"}
    results = []
    for name in ("derived", "listed"):
        c = Checkpoint(tmp_path / name, os.path.join(golden.GOLDEN, source))
        c.config.pop("layer_types", None)
        assert len(types) == c.config["num_hidden_layers"]
        c.config.update(values)
        if name == "listed":
            c.config["layer_types"] = [kinds[t] for t in types]
        c.write_config()
        results.append(scores(c.folder))
    assert results[0] == results[1]


def warnings(folder):
    done = run(folder, "--log-level", "warn")
    assert done.returncode == 0, done.stderr
    return [line for line in done.stderr.splitlines() if "tensor" in line]


def test_a_stored_head_is_used_even_if_the_config_ties_it(tmp_path):
    c = Checkpoint(tmp_path / "model")
    c.config["tie_word_embeddings"] = True
    c.write_config()
    assert tokens(c.folder) == tokens(SOURCE) and not warnings(SOURCE)
    assert ["lm_head.weight" in w and "tie_word_embeddings" in w for w in warnings(c.folder)] == [True]


def test_a_head_that_repeats_the_embedding_is_tied(tmp_path):
    source = os.path.join(golden.GOLDEN, "llama-tied")
    c = Checkpoint(tmp_path / "model", source)
    begin, end = c.header["model.embed_tokens.weight"]["data_offsets"]
    at = len(c.data)
    c.header["lm_head.weight"] = dict(c.header["model.embed_tokens.weight"], data_offsets=[at, at + end - begin])
    c.write(data=c.data + c.data[begin:end])
    assert tokens(c.folder) == tokens(source) and not warnings(c.folder)


def test_without_a_head_and_a_tie_key_the_embedding_is_the_head(tmp_path):
    c = Checkpoint(tmp_path / "model")
    del c.header[HEAD]
    c.write()
    del c.config["tie_word_embeddings"]
    results = []
    for said in ({"tie_word_embeddings": True}, {"tie_word_embeddings": None}, {}):
        c.write_config(json.dumps({**c.config, **said}))
        results.append(tokens(c.folder))
    assert results[1:] == results[:1] * 2


def test_unused_tensors_are_logged(tmp_path):
    c = Checkpoint(tmp_path / "model")
    c.config["num_hidden_layers"] -= 1
    c.write_config()
    last = f"model.layers.{c.config['num_hidden_layers']}."
    assert [last in w and WEIGHTS in w for w in warnings(c.folder)] == [True]


def rename(c, model, top=""):
    """Renames tensors: `model` replaces the prefix "model.", and `top` is put before the other names."""
    c.header = {k if k == "__metadata__" else model + k[6:] if k.startswith("model.") else top + k: v for k, v in c.header.items()}
    c.write()


@pytest.mark.parametrize("model, top", [("", ""), ("language_model.model.", "language_model."), ("model.language_model.", "")])
def test_names_of_wrappers_and_of_models_saved_without_a_head(model, top, tmp_path):
    for source in (SOURCE, os.path.join(golden.GOLDEN, "llama-tied")):
        c = Checkpoint(tmp_path / os.path.basename(source), source)
        rename(c, model, top)
        assert tokens(c.folder) == tokens(source) and not warnings(c.folder)


def test_a_model_saved_without_its_head_gives_embeddings(tmp_path):
    """As transformers' AutoModel saves it: names without "model.", and no head although it is not tied."""
    c = Checkpoint(tmp_path / "model")
    assert c.config["tie_word_embeddings"] is False
    del c.header[HEAD]
    rename(c, "")
    lines = [{"prompt_token_ids": [5, 6, 7], "pool": "last"}, json.loads(REQUEST), {"prompt_token_ids": [5, 6, 7], "pool": "mean"},
             {"prompt_token_ids": [5, 6, 7], "max_tokens": 0, "prompt_logprobs": True}]

    def ask(folder, *flags):
        return subprocess.run([*golden.RUN, str(folder), "--json", "--log-level", "warn", *flags], capture_output=True, text=True,
                              input="\n".join(map(json.dumps, lines)), timeout=60)
    done, whole = ask(c.folder), ask(SOURCE)
    have, want = ([json.loads(line) for line in d.stdout.splitlines()] for d in (done, whole))
    assert have[::2] == want[::2] and [HEAD in a["error"] for a in have[1::2]] == [True, True], done
    assert done.stderr.count(HEAD) == 1 and HEAD not in whole.stderr
    drafts = ask(c.folder, "--speculative-config", '{"method":"ngram","num_speculative_tokens":2}')
    assert drafts.returncode == 1 and HEAD in drafts.stderr and "speculative-config" in drafts.stderr, drafts


@pytest.mark.parametrize("stored, dtype", [("BF16", "bfloat16"), ("F32", "float32")])
@pytest.mark.parametrize("said", [{}, {"dtype": None, "torch_dtype": None}], ids=["absent", "null"])
def test_without_a_dtype_in_the_config_the_weights_decide(stored, dtype, said, tmp_path):
    c = Checkpoint(tmp_path / "model")
    c.retype(lambda i, fits: stored)
    for key in ("dtype", "torch_dtype"):
        c.config.pop(key, None)
    c.config.update(said)
    c.write_config()
    results = [scores(c.folder, dtype=d) for d in ("auto", "bfloat16", "float32")]
    assert results[1] != results[2]
    assert results[0] == results[1 if dtype == "bfloat16" else 2]


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LONG = {"rope_type": "longrope", "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5], "long_factor": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]}
ABSENT = object()


@pytest.mark.parametrize("source, values, same", [
    ("gemma-3", {"attn_logit_softcapping": 2.0}, {"attn_logit_softcapping": None}),
    ("llama-3", {"hidden_act": "gelu_fast"}, {"hidden_act": "gelu_new"}),
    ("llama-3", {"rope_scaling": YARN, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}, {"rope_scaling": YARN}),
    ("llama-3", {"rope_scaling": {}, "rope_parameters": {**YARN, "rope_theta": 1e4}}, {"rope_scaling": YARN, "rope_theta": 1e4}),
    ("gpt-oss", {"rope_scaling": None, "rope_parameters": None}, {}),
    ("deepseek-v2", {"rope_scaling": {"rope_type": "default", "factor": 40.0, "mscale_all_dim": 1.0}}, {"rope_scaling": None}),
    ("deepseek-v3", {"rope_scaling": {"rope_type": "default", "factor": 40.0, "mscale_all_dim": 1.0}}, {"rope_scaling": None}),
    ("phi-3-long", {"rope_scaling": {**LONG, "factor": 4.0}},
     {"rope_scaling": {**LONG, "attention_factor": (1 + math.log(4) / math.log(64)) ** 0.5}}),
    ("phi-3-long", {"max_position_embeddings": 8192, "original_max_position_embeddings": ABSENT,
                    "rope_scaling": {**LONG, "original_max_position_embeddings": 64}},
     {"max_position_embeddings": 8192, "original_max_position_embeddings": 4096, "rope_scaling": LONG}),
])
def test_two_configs_of_one_model(source, values, same, tmp_path):
    """As in transformers: Gemma 3's soft cap is unused; one GELU has two names; if there are two scalings, rope_scaling
    counts unless it is empty; GPT-OSS has a default scaling; without scaling there is no mscale; longrope's factor takes
    precedence over the ratio of lengths; Phi-3's original length is 4096 unless the top level has another."""
    results = []
    for name, changes in (("one", values), ("other", same)):
        c = Checkpoint(tmp_path / name, os.path.join(golden.GOLDEN, source))
        c.config.update(changes)
        c.config = {k: v for k, v in c.config.items() if v is not ABSENT}
        c.write_config()
        results.append(scores(c.folder))
    assert results[0] == results[1]


def test_of_two_scalings_the_ignored_one_is_logged(tmp_path):
    for other, words in [(None, []), ({}, []), (YARN, ["rope_parameters", "ignored", "rope_scaling"])]:
        c = Checkpoint(tmp_path / f"model{len(words)}{other is None}")
        c.config.update(rope_scaling=other, rope_parameters={"rope_type": "default", "rope_theta": 1e4})
        c.write_config()
        told = run(c.folder, "--log-level", "warn").stderr.splitlines()
        assert len(told) == bool(words) and all(word in line for word in words for line in told), told


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_an_unknown_key_of_a_scaling_is_logged_once(key, nested, tmp_path):
    """DeepSeek-R1-0528-Qwen3-8B has attn_factor; the key that is read is attention_factor."""
    results = []
    for more in ({"attn_factor": 0.5}, {"attention_factor": 0.5}, {}):
        c = Checkpoint(tmp_path / "_".join(["model", *more]), os.path.join(golden.GOLDEN, "llama-yarn"))
        scaling = {**(c.config.pop("rope_scaling", None) or c.config.pop("rope_parameters")), **more}
        c.config[key] = scaling
        if nested:
            text = {k: c.config.pop(k) for k in list(c.config) if k not in ("architectures", "eos_token_id")}
            c.config["text_config"] = text
        c.write_config()
        told = [line for line in run(c.folder, "--log-level", "warn").stderr.splitlines() if "ignored" in line]
        assert [f"{key}.attn_factor" in line for line in told] == [True] * ("attn_factor" in more), told
        results.append(scores(c.folder))
    assert results[0] == results[2] != results[1]


@pytest.mark.parametrize("family, length", [("phi-3-long", 64), ("phi-3-long", 80), ("llama-dynamic", 64), ("llama-dynamic", 128)])
def test_a_scaling_by_length_uses_the_served_length(family, length):
    """The served length may be limited by the operator or by the number of KV blocks. This applies to draft models, too."""
    folder = os.path.join(golden.GOLDEN, family)
    flags = ["--block-size", "16", "--dtype", "float32"]
    asked = {"prompt_token_ids": [7 * i % 380 for i in range(40)], "max_tokens": 20, "temperature": 0, "logprobs": 0,
             "prompt_logprobs": True, "ignore_eos": True}
    own = json.dumps({"method": "draft_model", "model": folder, "num_speculative_tokens": 3, "fixed": True})
    said, held, whole = (golden.generate(family, [asked], *flags, *more)[0] for more in (
        ["--max-model-len", str(length)], ["--num-gpu-blocks-override", str(length // 16)], []))
    assert said == held
    assert (said["prompt_logprobs"] == whole["prompt_logprobs"]) == ((family, length) == ("phi-3-long", 80))
    for more in (["--max-model-len", str(length)], ["--num-gpu-blocks-override", str(length // 16)]):
        drafted = golden.generate(family, [asked], *flags, *more, "--speculative-config", own)[0]
        assert drafted["outputs"] == said["outputs"]
        assert drafted["usage"]["draft_tokens"] == drafted["usage"]["accepted_draft_tokens"] > 0


def mutate_json(rng, value):
    """Replaces one randomly chosen part of a JSON value."""
    if isinstance(value, dict) and value:
        key = rng.choice(list(value))
        if rng.random() < 0.15:
            return {k: v for k, v in value.items() if k != key}
        return dict(value, **{key: mutate_json(rng, value[key])})
    if isinstance(value, list) and value and rng.random() < 0.7:
        i = rng.randrange(len(value))
        return value[:i] + [mutate_json(rng, value[i])] + value[i + 1:]
    return rng.choice([0, -1, 1, 2, 3, 7, 63, 65, 1 << 31, (1 << 31) - 1, 1 << 53, 1 << 63, -(1 << 63), 0.5, 1e300, -1e-9, None,
                       True, False, "", "x", "silu", [], [[]], {}, [None], [1, "a"], {"a": 1}])


@pytest.mark.parametrize("source", [SOURCE, MOE, os.path.join(golden.GOLDEN, "deepseek-v3"),
                                    os.path.join(golden.GOLDEN, "gemma-3")], ids=os.path.basename)
def test_random_damage_never_crashes(source, tmp_path):
    """Exit status 0 (harmless damage) or 1, never another, and never a hang."""
    rng = random.Random(os.path.basename(source))
    for i in range(int(os.environ.get("DAMAGE_RUNS", "200" if NIGHTLY else "12"))):
        folder = tmp_path / str(i)
        c = Checkpoint(folder, source)
        kind = rng.randrange(3)
        if kind == 0:
            c.config = mutate_json(rng, c.config)
            c.write_config()
        elif kind == 1:
            name = rng.choice([k for k in c.header if k != "__metadata__"])
            c.header[name] = mutate_json(rng, c.header[name])
            c.write()
        else:
            text = bytearray(json.dumps(c.header).encode())
            for _ in range(rng.randint(1, 3)):
                text[rng.randrange(len(text))] = rng.randrange(256)
            c.write(text.decode("latin-1"))
        done = run(folder, "--max-model-len", "256", "--max-num-seqs", "4")
        assert done.returncode in (0, 1), (i, kind, done.returncode, done.stderr)
        assert done.returncode == 0 or done.stderr.strip(), (i, kind)
        shutil.rmtree(folder)


def test_yarn_extends_the_maximum_length(tmp_path):
    """Users add YaRN to config.json without changing max_position_embeddings."""
    c = Checkpoint(tmp_path / "model", os.path.join(golden.GOLDEN, "llama-yarn"))
    c.config["max_position_embeddings"] = 64
    c.write_config()
    ask = {"prompt_token_ids": [3 + i * 7 % 370 for i in range(150)], "max_tokens": 8, "temperature": 0, "logprobs": 1}
    have, want = (golden.generate(where, [ask])[0]["outputs"] for where in (str(c.folder), "llama-yarn"))
    assert have == want


# ---- values ----

def poke(ck, name, element, bits):
    """Sets one element of a bfloat16 or float32 tensor."""
    entry = ck.header[name]
    size = {"BF16": 2, "F32": 4, "F16": 2}[entry["dtype"]]
    at = entry["data_offsets"][0] + element * size
    value = {2: {"nan": 0x7FC0 if entry["dtype"] == "BF16" else 0x7E00, "inf": 0x7F80 if entry["dtype"] == "BF16" else 0x7C00},
             4: {"nan": 0x7FC00000, "inf": 0x7F800000}}[size][bits].to_bytes(size, "little")
    ck.data = ck.data[:at] + value + ck.data[at + size:]


def broken(path, source, tensor, element=3):
    """A copy of a model with one element that is NaN; its folder."""
    ck = Checkpoint(path, source)
    poke(ck, tensor, element, "nan")
    ck.write()
    return ck.folder


@pytest.mark.parametrize("name, element, value", [(NORM, 3, "nan"), (DOWN, 0, "inf"), (HEAD, -1, "nan")])
def test_nan_weights_are_named(tmp_path, name, element, value):
    ck = Checkpoint(tmp_path / "m")
    element %= math.prod(ck.header[name]["shape"])
    poke(ck, name, element, value)
    ck.write()
    for depth in ((), ("--check-weights", "full")):
        done = run(ck.folder, *depth)
        assert done.returncode == 1 and f"tensor {name}: element {element} (" in done.stderr and "is NaN or infinite" in done.stderr, done.stderr
    assert "NaN" not in run(ck.folder, "--check-weights", "off").stderr.split("results")[0]


def test_a_full_check_finds_what_a_sampled_one_misses(tmp_path):
    ck = Checkpoint(tmp_path / "m")
    n = math.prod(ck.header[HEAD]["shape"])
    assert n > 16 * 64 * 2  # most of it is not sampled
    poke(ck, HEAD, 100, "inf")  # after the first piece
    ck.write()
    assert f"tensor {HEAD}: element 100" in run(ck.folder, "--check-weights", "full").stderr
    assert "tensor" not in run(ck.folder).stderr


def test_a_matrix_of_zeros_is_logged_and_loaded(tmp_path):
    ck = Checkpoint(tmp_path / "m")
    begin, end = ck.header[DOWN]["data_offsets"]
    ck.data = ck.data[:begin] + bytes(end - begin) + ck.data[end:]
    ck.write()
    done = run(ck.folder, "--log-level", "warn")
    assert done.returncode == 0 and f"tensor {DOWN} is all zero" in done.stderr
    assert done.stderr.count("is all zero") == 1


def test_nan_logits_are_an_error(tmp_path):
    """An error of that request only: the logits after another token are valid."""
    ck = Checkpoint(tmp_path / "m")
    width = ck.header["model.embed_tokens.weight"]["shape"][1]
    poke(ck, "model.embed_tokens.weight", 6 * width, "nan")
    ck.write()
    done = run(ck.folder, "--check-weights", "off")
    assert "not numbers" in done.stdout + done.stderr
    assert done.stderr.count("the model's results hold NaN") == 1, done.stderr


def test_checksums_beside_the_weights_are_used(tmp_path):
    import hashlib
    ck = Checkpoint(tmp_path / "m")
    sum_of = lambda: hashlib.sha256(open(ck.path(WEIGHTS), "rb").read()).hexdigest()
    sums = lambda text: open(ck.path("sluice.sha256"), "w").write(text)
    sums(f"{'0' * 64}  other.safetensors\n{sum_of()} *{WEIGHTS}\r\n")
    assert run(ck.folder).returncode == 0
    sums(f"{sum_of().upper()}  {WEIGHTS}")
    assert run(ck.folder).returncode == 0
    ck.data = bytes([ck.data[0] ^ 1]) + ck.data[1:]
    ck.write()
    done = run(ck.folder)
    assert done.returncode == 1 and f"{WEIGHTS} is not the file that" in done.stderr and "SHA-256" in done.stderr
    assert run(ck.folder, "--check-weights", "off").returncode == 0
    sums(f"{sum_of()}  {WEIGHTS}x\n")
    done = run(ck.folder)
    assert done.returncode == 1 and f"no checksum of {WEIGHTS}" in done.stderr
