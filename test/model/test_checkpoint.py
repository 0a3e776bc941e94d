"""Folders that are not what they should be: one sentence that names the file and the tensor, exit 1, never a crash; and
folders that are unusual but right."""
import json
import os
import random
import shutil
import struct
import subprocess

import pytest

import golden

SOURCE = os.path.join(golden.GOLDEN, "llama-3")
MOE = os.path.join(golden.GOLDEN, "qwen3-moe")
REQUEST = json.dumps({"prompt_token_ids": [5, 6, 7], "max_tokens": 4, "temperature": 0, "ignore_eos": True}) + "\n"
WEIGHTS = "model.safetensors"
NORM = "model.layers.1.input_layernorm.weight"
DOWN = "model.layers.1.mlp.down_proj.weight"


def run(folder, *flags, timeout=60):
    return subprocess.run([golden.SLUICE, "generate", str(folder), "--json", "--log-level", "error", "--device",
                           golden.DEVICE, *flags], input=REQUEST, capture_output=True, text=True, timeout=timeout)


def tokens(folder, *flags):
    done = run(folder, *flags)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["outputs"][0]["token_ids"]


class Checkpoint:
    """A copy of a folder with one file of weights, taken apart."""

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


def missing_tensor(c):
    del c.header[NORM]
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


def index_without_file(c):
    c.shards(3, index=True)
    os.unlink(c.path("model-00002-of-00003.safetensors"))


def index_outside(c):
    c.shards(2, index=True)
    path = c.path(WEIGHTS + ".index.json")
    index = json.load(open(path))
    index["weight_map"][DOWN] = "../../etc/passwd"
    json.dump(index, open(path, "w"))


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


def rope(**values):
    def change(c):
        c.config.pop("rope_scaling", None)
        c.config["rope_parameters"] = {"rope_theta": 10000.0, **values}
        c.write_config()
    return change


BROKEN = {  # what is wrong: what the sentence must name
    missing_tensor: [NORM],
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
    index_without_file: ["model-00002-of-00003.safetensors"],
    index_outside: ["outside", "../../etc/passwd"],
    no_config: ["config.json"],
    broken_config: ["config.json"],
    config_is_a_list: ["config.json"],
    config_value(model_type="gpt_neox"): ["config.json", "gpt_neox", "llama"],
    config_value(model_type=7): ["config.json", "model_type"],
    config_value(hidden_size="64"): ["config.json", "hidden_size"],
    config_value(num_hidden_layers=0): ["config.json", "num_hidden_layers"],
    config_value(num_hidden_layers=10 ** 30): ["config.json", "num_hidden_layers"],
    config_value(num_hidden_layers=9): ["model.layers."],
    config_value(vocab_size=100): ["embed_tokens"],
    config_value(num_key_value_heads=3): ["config.json", "heads"],
    config_value(hidden_act="tanhshrink"): ["config.json", "tanhshrink"],
    config_value(quantization_config={"quant_method": "awq"}): ["config.json", "quantised"],
    config_value(torch_dtype="int8", dtype="int8"): ["config.json", "int8"],
    rope(rope_type="spiral"): ["spiral"],
    rope(rope_type="linear", factor=0.0): ["factor"],
    rope(rope_type="longrope", short_factor=[1.0], long_factor=[1.0]): ["longrope"],
    rope(rope_type="llama3", factor=8.0, low_freq_factor=4.0, high_freq_factor=1.0): ["llama3"],
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


def test_a_folder_that_is_none(tmp_path):
    for folder in (tmp_path / "absent", tmp_path, os.path.join(SOURCE, "config.json")):
        done = run(folder)
        assert done.returncode == 1 and len(done.stderr.strip().splitlines()) == 1, done.stderr


@pytest.mark.parametrize("index", [True, False], ids=["index", "no index"])
def test_shards(index, tmp_path):
    c = Checkpoint(tmp_path / "model")
    c.shards(3, index)
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
def test_both_forms_of_config(form, tmp_path):
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


def mutate_json(rng, value):
    """One place of a JSON value becomes something else."""
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
    """Exit 0 (the damage did not matter) or 1, nothing else; never a wait."""
    rng = random.Random(os.path.basename(source))
    for i in range(int(os.environ.get("DAMAGE_RUNS", "25"))):
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
