# SPDX-License-Identifier: Apache-2.0
"""PyTorch's files: pytorch_model.bin and its shards. The answers are those of the same weights in safetensors files; what is
not a plain state dict is refused by name, and never executed."""
import collections
import json
import os
import pickle
import random
import subprocess
import zipfile

import pytest

import golden
import torch_files
from nightly import NIGHTLY

ONE, INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
LLAMA = os.path.join(golden.GOLDEN, "llama-3")
TIED = os.path.join(golden.GOLDEN, "llama-tied")
ASKED = json.dumps({"prompt_token_ids": [5, 6, 7, 8, 9, 10, 11], "max_tokens": 8, "temperature": 0, "logprobs": 5,
                    "prompt_logprobs": True, "ignore_eos": True}) + "\n"


def run(folder, *flags, level="error"):
    return subprocess.run([*golden.RUN, str(folder), "--json", "--log-level", level, *flags], input=ASKED, capture_output=True,
                          text=True, timeout=60)


def answer(folder, *flags):
    done = run(folder, *flags)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["outputs"], json.loads(done.stdout)["prompt_logprobs"]


def refusal(folder):
    done = run(folder)
    assert done.returncode == 1 and done.stderr.count("\n") == 1, done
    return done.stderr


def weights(source):
    return torch_files.stored(os.path.join(source, "model.safetensors"))


def shard(folder, tensors, n, index):
    names = [f"pytorch_model-{i + 1:05}-of-{n:05}.bin" for i in range(n)]
    for i, name in enumerate(names):
        torch_files.save(os.path.join(folder, name), dict(list(tensors.items())[i::n]))
    if index:
        where = {key: names[i % n] for i, key in enumerate(tensors)}
        with open(os.path.join(folder, INDEX), "w") as f:
            json.dump({"metadata": {}, "weight_map": where}, f)
    return names


# ---- answers ----

SOME = ["llama-3", "gemma-3", "gpt2", "opt", "gpt-neox", "falcon", "qwen3-moe"]


@pytest.mark.parametrize("family", golden.families() if NIGHTLY else SOME)
def test_answers_are_those_of_safetensors(family, tmp_path):
    source = os.path.join(golden.GOLDEN, family)
    folder = torch_files.without_weights(source, tmp_path / "m")
    torch_files.save(os.path.join(folder, ONE), weights(source))
    assert answer(folder) == answer(source)


@pytest.mark.parametrize("index", [True, False])
def test_shards(index, tmp_path):
    folder = torch_files.without_weights(LLAMA, tmp_path / "m")
    names = shard(folder, weights(LLAMA), 3, index)
    assert answer(folder) == answer(LLAMA)
    os.remove(os.path.join(folder, names[1]))
    says = refusal(folder)
    assert (f"{names[1]} is missing, although the index names it" if index else "there is no tensor") in says


def test_a_quantised_copy_and_quantisation_while_loading(tmp_path):
    folder = torch_files.without_weights(LLAMA, tmp_path / "m")
    shard(folder, weights(LLAMA), 2, True)
    assert answer(folder, "--quantization", "fp8") == answer(LLAMA, "--quantization", "fp8")
    for source, out in ((folder, "a"), (LLAMA, "b")):
        subprocess.run([golden.SLUICE, "quantize", source, tmp_path / out, "--format", "fp8"], check=True, capture_output=True, timeout=60)
    assert not [n for n in os.listdir(tmp_path / "a") if n.endswith((".bin", ".bin.index.json"))]
    assert answer(tmp_path / "a") == answer(tmp_path / "b") != answer(LLAMA)


@pytest.mark.skipif(golden.DEVICE != "cpu", reason="needs two GPUs")
def test_several_ranks(tmp_path):
    folder = torch_files.without_weights(LLAMA, tmp_path / "m")
    torch_files.save(os.path.join(folder, ONE), weights(LLAMA))
    assert answer(folder, "--tensor-parallel-size", "2") == answer(LLAMA, "--tensor-parallel-size", "2")


def test_a_draft_model(tmp_path):
    folder = torch_files.without_weights(TIED, tmp_path / "m")
    torch_files.save(os.path.join(folder, ONE), weights(TIED))
    draft = json.dumps({"method": "draft_model", "model": folder, "num_speculative_tokens": 3})
    assert answer(LLAMA, "--speculative-config", draft)[0] == answer(LLAMA)[0]


def test_safetensors_are_preferred(tmp_path):
    folder = torch_files.without_weights(LLAMA, tmp_path / "m")
    with open(os.path.join(folder, ONE), "w") as f:
        f.write("not read")
    os.symlink(os.path.join(LLAMA, "model.safetensors"), os.path.join(folder, "model.safetensors"))
    assert answer(folder) == answer(LLAMA)


# ---- files of torch itself ----

def torch_tensors(torch, source):
    types = {"BF16": torch.bfloat16, "F32": torch.float32}
    return {name: torch.frombuffer(bytearray(data), dtype=types[dtype]).reshape(shape)
            for name, (dtype, shape, data) in weights(source).items()}


def in_one_storage(torch, tensors):
    """Views of one large storage, with gaps, as some tools save flattened parameters."""
    whole, at, views = torch.zeros(3 * sum(t.numel() + 7 for t in tensors.values()), dtype=torch.bfloat16), 5, {}
    for name, t in tensors.items():
        views[name] = whole[at:at + t.numel()].view(t.shape)
        views[name].copy_(t)
        at += t.numel() + 7
    return views


def with_attributes(torch, tensors):
    made = {}
    for i, (name, t) in enumerate(tensors.items()):
        made[name] = torch.nn.Parameter(t) if i % 2 else t
        made[name].tensor_model_parallel = True
    return made


def of_a_module(torch, tensors):
    """state_dict() of a tree of modules: ordered, with versions of the modules as an attribute."""
    root = torch.nn.Module()
    for name, t in tensors.items():
        *parts, last = name.split(".")
        node = root
        for part in parts:
            if part not in node._modules:
                node.add_module(part, torch.nn.Module())
            node = node._modules[part]
        node.register_parameter(last, torch.nn.Parameter(t))
    made = root.state_dict()
    assert made._metadata and list(made) and isinstance(made, collections.OrderedDict)
    return made


FORMS = {
    "dict": lambda torch, t: t,
    "module": of_a_module,
    "parameters": lambda torch, t: {k: torch.nn.Parameter(v) for k, v in t.items()},
    "attributes": with_attributes,
    "one storage": in_one_storage,
    "turned": lambda torch, t: {k: v.T.contiguous().T if v.dim() == 2 else v for k, v in t.items()},
    "every second": lambda torch, t: {k: torch.stack([v, v], -1)[..., 0] for k, v in t.items()},
    "float32": lambda torch, t: {k: v.float() for k, v in t.items()},
    "mixed": lambda torch, t: {k: v.float() if i % 2 else v for i, (k, v) in enumerate(t.items())},
    "buffers": lambda torch, t: {**t, "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)},
}


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("form", FORMS)
def test_files_of_torch(form, protocol, tmp_path):
    torch = pytest.importorskip("torch")
    folder = torch_files.without_weights(LLAMA, tmp_path / "m")
    torch.save(FORMS[form](torch, torch_tensors(torch, LLAMA)), os.path.join(folder, ONE), pickle_protocol=protocol)
    assert answer(folder) == answer(LLAMA)


def test_tied_tensors_share_a_storage(tmp_path):
    torch = pytest.importorskip("torch")
    folder = torch_files.without_weights(TIED, tmp_path / "m")
    tensors = torch_tensors(torch, TIED)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    torch.save(tensors, os.path.join(folder, ONE))
    with zipfile.ZipFile(os.path.join(folder, ONE)) as z:
        assert len([n for n in z.namelist() if "/data/" in n]) == len(tensors) - 1
    assert answer(folder) == answer(TIED)


def test_half_precision(tmp_path):
    """Some values change with the type, in the same way in both kinds of files."""
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file
    tensors = {k: v.half() for k, v in torch_tensors(torch, LLAMA).items()}
    a, b = (torch_files.without_weights(LLAMA, tmp_path / n) for n in "ab")
    torch.save(tensors, os.path.join(a, ONE))
    save_file(tensors, os.path.join(b, "model.safetensors"))
    assert answer(a) == answer(b)


def test_torch_reads_what_these_tests_write(tmp_path):
    torch = pytest.importorskip("torch")
    torch_files.save(tmp_path / "x.bin", weights(LLAMA))
    read, want = torch.load(tmp_path / "x.bin", weights_only=True), torch_tensors(torch, LLAMA)
    assert list(read) == list(want) and all(torch.equal(read[k], want[k]) for k in want)


# ---- refusals ----

def test_the_form_before_pytorch_1_6_is_refused(tmp_path):
    torch = pytest.importorskip("torch")
    folder = torch_files.without_weights(LLAMA, tmp_path / "m")
    path = os.path.join(folder, ONE)
    torch.save(torch_tensors(torch, LLAMA), path, _use_new_zipfile_serialization=False)
    says = refusal(folder)
    assert "before PyTorch 1.6" in says
    exec(says[says.index("import torch"):].strip())  # as the message says
    assert answer(folder) == answer(LLAMA)


class Attack:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


def test_nothing_is_executed(tmp_path):
    folder = torch_files.without_weights(LLAMA, tmp_path / "m")
    for protocol in (2, 4):
        for value in (Attack(tmp_path / "done"), {"lm_head.weight": Attack(tmp_path / "done")}):
            torch_files.archive(os.path.join(folder, ONE), pickle.dumps(value, protocol), {})
            assert "uses the pickled global posix.system, which sluice does not execute" in refusal(folder)
    assert not os.path.exists(tmp_path / "done")


@pytest.mark.parametrize("value, words", [
    ([1, 2], "not a state dict"), ({"epoch": 3}, "tensor epoch is not a tensor"),
    ({"state_dict": {}}, "tensor state_dict is not a tensor"), ({3: None}, "an entry's name is not text"),
    ({"a": 1 + 2j}, "uses the pickled global"), ({"a": {1, 2}}, "uses the pickled global"),
    (collections.Counter(), "uses the pickled global collections.Counter")])
def test_other_objects_are_refused(value, words, tmp_path):
    folder = torch_files.without_weights(LLAMA, tmp_path / "m")
    torch_files.archive(os.path.join(folder, ONE), pickle.dumps(value, 2), {})
    assert words in refusal(folder)


def test_a_missing_tensor_and_a_wrong_shape_are_named(tmp_path):
    folder = torch_files.without_weights(LLAMA, tmp_path / "m")
    tensors = weights(LLAMA)
    dtype, shape, data = tensors.pop("model.norm.weight")
    torch_files.save(os.path.join(folder, ONE), tensors)
    says = refusal(folder)
    assert "model.norm.weight" in says and ONE in says
    torch_files.save(os.path.join(folder, ONE), {**tensors, "model.norm.weight": (dtype, [shape[0] // 2], data[:len(data) // 2])})
    assert "model.norm.weight" in refusal(folder)


def test_damaged_files_never_crash(tmp_path):
    folder = torch_files.without_weights(LLAMA, tmp_path / "m")
    path, draw = os.path.join(folder, ONE), random.Random(1)
    torch_files.save(path, weights(LLAMA))
    with open(path, "rb") as f:
        whole = f.read()
    at_pickle = whole.index(b"\x80\x02ccollections")
    for i in range(300 if NIGHTLY else 20):
        damaged = bytearray(whole)
        if i % 2:
            del damaged[draw.randrange(len(whole)):]
        else:
            for _ in range(draw.randrange(1, 4)):
                place = draw.choice([draw.randrange(at_pickle, at_pickle + 3000), len(whole) - draw.randrange(1, 4000)])
                damaged[place] = draw.randrange(256)
        with open(path, "wb") as f:
            f.write(damaged)
        done = run(folder)
        assert done.returncode == 1 and done.stderr.count("\n") == 1 or done.returncode == 0 and not i % 2, done
