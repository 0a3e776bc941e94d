# SPDX-License-Identifier: Apache-2.0
"""Token trees with real models: every sampling parameter on every path, and a model that drafts for itself."""
import json
import os
import shutil
import struct

import pytest

import golden
from nightly import share

FAMILY = "llama-3"
OWN = os.path.join(golden.GOLDEN, FAMILY)
STRANGER = os.path.join(golden.GOLDEN, "llama-tied")


def flags(method="tree", model=OWN, **more):
    config = {"method": method, "model": model, "fixed": True, **golden.AS_SHARDED, **more}
    return ["--speculative-config", json.dumps(config)]


SHAPES = {
    "chain": flags("draft_model", num_speculative_tokens=3),
    "static": flags(expansion=[1, 1, 1]),
    "wide": flags(expansion=[3, 2, 2]),
    "dynamic": flags(num_speculative_tokens=3, tree_nodes=20),
    "two drafts": flags(model=[OWN, STRANGER], num_speculative_tokens=3, tree_nodes=20),
}


def prompt(i, n):
    return [3 + (7 * i + 13 * k * k) % 370 for k in range(n)]


@pytest.mark.parametrize("shape", ["chain", "static", "wide"])  # other shapes may spend their nodes on width
@pytest.mark.parametrize("temperature", [0, 1.0])
def test_a_model_that_drafts_for_itself_gives_depth_plus_one_tokens_a_step(shape, temperature):
    request = {"prompt_token_ids": prompt(1, 21), "max_tokens": 25, "temperature": temperature, "seed": 5,
               "ignore_eos": True}
    answer = golden.generate(FAMILY, [request], *SHAPES[shape])[0]
    assert answer["usage"]["accepted_draft_tokens"] == 18  # six steps of 4


def requests():
    """Parameters that act at each position: bans, penalties, bias, minimum lengths and stops."""
    base = {"max_tokens": 40, "logprobs": 3}
    kinds = [
        {"temperature": 0, "repetition_penalty": 1.3},
        {"temperature": 0, "frequency_penalty": 1.5, "presence_penalty": -0.5},
        {"temperature": 0.7, "top_k": 5, "repetition_penalty": 1.2},
        {"temperature": 1.3, "top_p": 0.7, "min_p": 0.05},
        {"temperature": 1.0, "allowed_token_ids": list(range(10, 40)), "n": 3},
        {"temperature": 0, "logit_bias": {"17": 6.0, "18": 5.0}, "frequency_penalty": 2.0},
        {"temperature": 1.0, "stop_token_ids": list(range(60)), "min_tokens": 9},
        {"temperature": 1.0, "stop_token_ids": list(range(20, 40)), "n": 4},
        {"temperature": 0.9, "bad_words": [[11], [12, 13]], "allowed_token_ids": [11, 12, 13, 14, 15]},
        {"temperature": 1.0, "num_speculative_tokens": 1},
        {"temperature": 2.0},
    ]
    return [{**base, **kind, "prompt_token_ids": prompt(i, 5 + 4 * i), "seed": 100 + i} for i, kind in enumerate(kinds)]


def essence(answer):
    return [(o["token_ids"], o["logprobs"], o["top_logprobs"], o["finish_reason"]) for o in answer["outputs"]]


@pytest.fixture(scope="module")
def plain():
    return [essence(golden.generate(FAMILY, [r])[0]) for r in requests()]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("how", [golden.TWO_THREADS, ["--num-gpu-blocks-override", "20", "--max-model-len", "128"],
                                 ["--tensor-parallel-size", "2"]])
def test_parameters_apply_along_every_path(shape, how, plain):
    if "--tensor-parallel-size" in how and not golden.EXACT_RANKS:
        pytest.skip("GPUs add in another order")
    answers = golden.generate(FAMILY, requests(), *SHAPES[shape], *how)
    for i, (have, want) in enumerate(zip(answers, plain)):
        assert essence(have) == want, f"{shape}: request {i}"
    assert sum(a["usage"]["accepted_draft_tokens"] for a in answers) > 100
    ends = {o["finish_reason"] for a in answers for o in a["outputs"]}
    assert ends == {"stop", "length"}


def spoiled(family, folder, noise=0.08):
    """The family's own model with noisy weights: sometimes right, and so is its second guess."""
    np = pytest.importorskip("numpy")
    shutil.copytree(os.path.join(golden.GOLDEN, family), folder)
    rng = np.random.default_rng(5)
    for path in folder.glob("*.safetensors"):
        path.chmod(0o644)
        data = np.fromfile(path, dtype=np.uint8)
        start = 8 + struct.unpack("<Q", data[:8].tobytes())[0]
        for name, t in json.loads(data[8:start].tobytes()).items():
            if name != "__metadata__" and len(t["shape"]) > 1 and t["dtype"] == "BF16":
                a, b = (start + x for x in t["data_offsets"])
                x = (data[a:b].copy().view(np.uint16).astype(np.uint32) << 16).view(np.float32)
                x = x + rng.standard_normal(x.shape, dtype=np.float32) * (noise * x.std())
                data[a:b] = (x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        data.tofile(path)
    return str(folder)


@pytest.mark.parametrize("family", golden.families())
def test_paths_off_the_spine_have_the_bits_of_a_plain_run(family, tmp_path):
    """Every family, on the tested device, with a draft model that is right half of the time, so that siblings are
    accepted."""
    model = spoiled(family, tmp_path / "spoiled")
    how = ["--deterministic", "--max-model-len", "192", "--num-gpu-blocks-override", "300"]
    some = [{"prompt_token_ids": prompt(i, 5 + 9 * i), "max_tokens": 24, "logprobs": 2, "ignore_eos": True, "seed": i,
             "temperature": i % 2, "n": 1 + i % 3} for i in range(6)]
    want = [essence(a) for a in golden.generate(family, some, *how)]
    shapes = [({"expansion": [1, 2, 3, 1]}, []), ({"num_speculative_tokens": 4, "tree_nodes": 40}, golden.TWO_THREADS)]
    for shape, threads in share(shapes, golden.families().index(family), of=2):
        answers = golden.generate(family, some, *how, *flags(model=model, **shape), *threads)
        assert [essence(a) for a in answers] == want, f"{family}, {shape}"
        assert sum(a["usage"]["accepted_draft_tokens"] for a in answers) > 40


@pytest.mark.parametrize("how", [{"method": "draft_model"}, {"method": "tree"}])
def test_a_draft_model_may_have_a_shorter_context(how, tmp_path):
    short = tmp_path / "short"
    shutil.copytree(OWN, short)
    config = json.loads((short / "config.json").read_text())
    (short / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 48}))
    some = [{"prompt_token_ids": prompt(i, n), "max_tokens": 40, "temperature": i % 2, "seed": i, "logprobs": 1}
            for i, n in enumerate((10, 30, 47, 48, 100))]
    want = [essence(a) for a in golden.generate(FAMILY, some)]
    answers = golden.generate(FAMILY, some, *flags(model=str(short), num_speculative_tokens=3, **how))
    assert [essence(a) for a in answers] == want
    drafted = [a["usage"]["draft_tokens"] for a in answers]
    assert drafted[0] > drafted[1] > 0 and drafted[4] == 0


def test_a_draft_with_another_vocabulary_is_refused(tmp_path):
    with open(os.path.join(OWN, "config.json")) as f:
        config = json.load(f)
    (tmp_path / "config.json").write_text(json.dumps({**config, "vocab_size": config["vocab_size"] + 1}))
    with pytest.raises(AssertionError, match="vocabulary"):
        golden.generate(FAMILY, requests()[:1], *flags(model=[OWN, str(tmp_path)]))
