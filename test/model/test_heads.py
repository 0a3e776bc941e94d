# SPDX-License-Identifier: Apache-2.0
"""Draft heads: their drafts equal those of an independent implementation; no setting and no other request changes a bit
of an answer; heads that do not fit are refused by name."""
import itertools
import json
import os
import random

import pytest

import golden
import heads
import test_cube
import test_hybrid
from nightly import NIGHTLY, at_night, share
from test_cube import essence

MOST_MODULES = 3
SPARSE = os.path.join(golden.FAMILIES, "deepseek-v3.2")  # has a module
HYBRIDS = ["qwen3.5", "qwen3.5-moe", "qwen3-next"]
ALLOWED = [10, 20, 30, 40, 50, 60]  # a small vocabulary, so that random heads are often right


def speculative(**config):
    return "--speculative-config", json.dumps({"num_speculative_tokens": 3, "fixed": True, **config})


def few_requests():
    rng = random.Random(5)
    return [{"prompt_token_ids": [rng.randrange(3, 378) for _ in range(2 + 7 * i)], "max_tokens": 40, "temperature": 0,
             "ignore_eos": True, "allowed_token_ids": ALLOWED} for i in range(6)]


def check_drafts(head, folder, *flags, k=3):
    """In float32, where both agree to many digits, the same drafts are accepted."""
    requests, total = few_requests(), 0
    for r, a in zip(requests, golden.generate(folder, requests, "--dtype", "float32", *flags)):
        answer = a["outputs"][0]["token_ids"]
        want = heads.accepted(head, tuple(r["prompt_token_ids"]), tuple(answer), k, tuple(ALLOWED))
        assert (a["usage"]["draft_tokens"], a["usage"]["accepted_draft_tokens"]) == want
        total += want[1]
    assert total > 12


def test_a_module_drafts_the_same_as_numpy(tmp_path):
    target = heads.Target("llama-2")
    tensors = heads.mtp_tensors(target.c)
    folder = heads.with_tensors("llama-2", tmp_path / "mtp", tensors)
    check_drafts(heads.Mtp(target, tensors), folder, *speculative(method="mtp"))


@pytest.mark.parametrize("form", ["fp8", "int4"])
def test_a_quantised_module_drafts_nearly_as_well(form):
    """The demo model's module, on text that the model knows, with a quantised copy of the output head."""
    demo = os.path.join(golden.ROOT, "models", "demo")
    requests = [{"prompt": f"The capital of {place} is", "max_tokens": 48, "temperature": 0, "ignore_eos": True}
                for place in ("France", "Japan", "Peru", "Kenya", "Norway", "Egypt")]

    def run(*flags):
        answers = golden.generate(demo, requests, "--dtype", "float32", *flags)
        return [a["outputs"][0]["token_ids"] for a in answers], sum(a["usage"].get("accepted_draft_tokens", 0) for a in answers)

    plain, _ = run()
    whole, accepted = run(*speculative(method="mtp"))
    quantised, still = run(*speculative(method="mtp", quantization=form))
    assert whole == quantised == plain
    assert still != accepted and still > 0.9 * accepted > 60


@pytest.mark.parametrize("n, k", [(2, 3), (3, 3), (3, 2), (5, 5), *at_night((2, 5))])
def test_several_modules_draft_the_same_as_numpy(tmp_path, n, k):
    """There are as many modules as drafts; or fewer, and the last module makes the remaining drafts; or more than are
    supported, and only the first are used."""
    target = heads.Target("llama-2")
    tensors = heads.mtp_tensors(target.c, n=n)
    folder = heads.with_tensors("llama-2", tmp_path / "mtp", tensors, mtp_num_hidden_layers=n)
    some = heads.Modules(target, tensors, min(n, k, MOST_MODULES))
    check_drafts(some, folder, *speculative(method="mtp", num_speculative_tokens=k), k=k)
    chunks = ("--max-num-batched-tokens", "28", "--max-num-seqs", "1")  # the rows left over from a chunk still fit into a pass
    check_drafts(some, folder, *speculative(method="mtp", num_speculative_tokens=k), *chunks, k=k)


@pytest.mark.parametrize("variant", [{}, {"norm_before_residual": True, "eagle_config": {
    "eagle_aux_hidden_state_layer_ids": [2, 4]}}, {"hidden_size": 48, "draft_vocab_size": 384}])
def test_an_eagle3_head_drafts_the_same_as_numpy(tmp_path, variant):
    """Variants: norm_before_residual with other layers, including the last one; another width, with an embedding of its
    own."""
    target = heads.Target("llama-2")
    ids = {"eagle_aux_hidden_state_layer_ids": [1, 2, 3]}
    config = {**heads.EAGLE3, "hidden_size": 64, "vocab_size": 384, "draft_vocab_size": 200, "eagle_config": ids, **variant}
    fed = config["eagle_config"]["eagle_aux_hidden_state_layer_ids"]
    tensors = heads.eagle3_tensors(config, 64, len(fed))
    if config["hidden_size"] != 64:
        tensors["embed_tokens.weight"] = heads.drawn(heads.numpy.random.default_rng(9), 384, config["hidden_size"])
    tensors = know(tensors, ALLOWED[:-1])
    folder = heads.eagle3_folder(tmp_path / "head", config, tensors)
    head = heads.Eagle3(target, config, tensors, fed)
    check_drafts(head, "llama-2", *speculative(method="eagle3", model=folder))


TOP = ("draft_vocab_size", "target_hidden_size", "norm_before_residual", "eagle_aux_hidden_state_layer_ids")


def as_speculators_writes_it(config, tensors):
    """Converts to the format of `speculators`: the layer's keys in a separate object, and other tensor names."""
    top = {k: config[k] for k in TOP if k in config}
    layer = {k: v for k, v in config.items() if k not in top and k not in ("architectures", "torch_dtype")}
    top = {"architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3", "torch_dtype": "bfloat16",
           "target_hidden_size": None, "speculators_config": {"algorithm": "eagle3"}, **top}
    return {**top, "transformer_layer_config": layer}, {k.replace("midlayer.", "layers.0."): v for k, v in tensors.items()}


@pytest.mark.parametrize("before", [None, False])
def test_a_head_in_speculators_format_drafts_the_same(tmp_path, before):
    """The default of norm_before_residual is true."""
    target = heads.Target("llama-2")
    config = {**heads.EAGLE3, "hidden_size": 64, "vocab_size": 384, "draft_vocab_size": 200,
              "eagle_aux_hidden_state_layer_ids": [1, 2, 3], **({} if before is None else {"norm_before_residual": before})}
    tensors = know(heads.eagle3_tensors(config, 64, 3), ALLOWED)
    folder = heads.eagle3_folder(tmp_path / "head", *as_speculators_writes_it(config, tensors))
    head = heads.Eagle3(target, {**config, "norm_before_residual": before is None}, tensors, [1, 2, 3])
    check_drafts(head, "llama-2", *speculative(method="eagle3", model=folder))
    other, _ = as_speculators_writes_it(config, tensors)
    other = heads.eagle3_folder(tmp_path / "other", {**other, "speculators_model_type": "dflash"}, tensors)
    says = refusal("llama-2", *speculative(method="eagle3", model=other))
    assert "the speculators_model_type 'dflash' is not eagle3" in says


def know(tensors, ids):
    """A draft vocabulary that includes these ids."""
    n, vocab = len(tensors["d2t"]), len(tensors["t2d"])
    known = sorted({*ids, *list(heads.numpy.flatnonzero(tensors["t2d"]))} - ({*ALLOWED} - {*ids} if n < vocab else set()))
    known = sorted([*ids, *[i for i in known if i not in ids][:n - len(ids)]])
    t2d = heads.numpy.zeros(vocab, bool)
    t2d[known] = True
    d2t = heads.numpy.array(known, heads.numpy.int64) - heads.numpy.arange(n)
    return {**tensors, "t2d": t2d, "d2t": d2t}


# ---- no setting changes an answer

SHAPES = {"mtp": {"method": "mtp"}, "mtp comb": {"method": "mtp", "expansion": [2, 1, 1]},
          "mtp tree": {"method": "mtp", "num_speculative_tokens": 4, "tree_width": 3, "tree_nodes": 14},
          "eagle3": {"method": "eagle3"}, "eagle3 tree": {"method": "eagle3", "tree_width": 2, "tree_nodes": 12}}


def shaped(how, head, **more):
    return speculative(**SHAPES[how], **({"model": head} if how.startswith("eagle3") else {}), **more)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A dense model, and two with MLA and experts whose module is a layer after the last one; the second is sparse."""
    at = tmp_path_factory.mktemp("heads")
    v3 = golden.config("deepseek-v3")
    dense = heads.with_tensors("llama-2", at / "llama-2", heads.mtp_tensors(golden.config("llama-2")))
    n = v3["num_hidden_layers"]
    moe = heads.with_tensors("deepseek-v3", at / "deepseek-v3", heads.like_layer("deepseek-v3", n - 1, f"model.layers.{n}."),
                             num_nextn_predict_layers=1)
    return {"llama-2": dense, "deepseek-v3": moe, SPARSE: SPARSE}


def alone(family):
    return test_cube.alone(family, "auto")


def head_for(tmp_path, folder):
    with open(os.path.join(folder, "config.json")) as f:
        c = json.load(f)
    c = c.get("text_config", c)
    n = c["num_hidden_layers"]
    config = {**heads.EAGLE3, "hidden_size": c["hidden_size"], "vocab_size": c["vocab_size"], "draft_vocab_size": 100,
              "eagle_aux_hidden_state_layer_ids": [1, n - 1, n]}
    return heads.eagle3_folder(tmp_path / "head", config, heads.eagle3_tensors(config, c["hidden_size"], 3))


def check_cube(folder, head, requests, want, runs, base, wanted):
    saw = dict.fromkeys(wanted, 0)
    for flags, how in runs:
        answers = golden.generate(folder, requests, *flags, *base, *shaped(how, head))
        for i, (have, expected) in enumerate(zip(answers, want)):
            assert essence(have) == expected, f"{folder}, {flags}, {how}: request {i}"
            for k in saw:
                saw[k] += have["usage"][k]
    assert all(saw.values()), saw  # without these events the cube would prove nothing


FOLDERS = ["llama-2", "deepseek-v3", SPARSE]


@pytest.mark.parametrize("family", FOLDERS)
def test_no_setting_and_no_other_request_changes_a_request(tmp_path, folders, family):
    cube = test_cube
    axes = [sum(flags, []) for flags in itertools.product(cube.CHUNKS.values(), cube.CACHE.values(), cube.POOL.values())]
    runs = share(zip(axes * 2, itertools.cycle(SHAPES)), FOLDERS.index(family), of=len(FOLDERS))
    check_cube(folders[family], head_for(tmp_path, folders[family]), cube.requests(), alone(family), runs,
               ["--max-model-len", "256", "--block-size", "16", "--prefix-match-unit", "4"], ["preemptions", "cached_tokens", "accepted_draft_tokens"])


@pytest.mark.parametrize("family", ["llama-2", "deepseek-v3"])
def test_no_setting_and_no_other_request_changes_a_request_of_several_modules(tmp_path, family):
    """As `mtp.*` layers, and as layers after the last one with their own heads; the latter on two ranks."""
    c, n = golden.config(family), 3
    if family == "llama-2":
        tensors, key = heads.mtp_tensors(c, n=n), "mtp_num_hidden_layers"
    else:
        first, key = c["num_hidden_layers"], "num_nextn_predict_layers"
        layers = [heads.like_layer(family, first - 1, f"model.layers.{first + i}.", seed=i) for i in range(n)]
        tensors = {k: v for layer in layers for k, v in layer.items()}
    folder = heads.with_tensors(family, tmp_path / "model", tensors, **{key: n})
    cube, want = test_cube, alone(family)
    saw = dict.fromkeys(["preemptions", "cached_tokens", "accepted_draft_tokens"], 0)
    for flags in ([*cube.CHUNKS["chunked"], *cube.POOL["tiny pool"]], cube.RANKS["two ranks"] if golden.EXACT_RANKS else []):
        answers = golden.generate(folder, cube.requests(), "--max-model-len", "256", "--block-size", "16",
                                  "--prefix-match-unit", "4", *flags,
                                  *speculative(method="mtp", num_speculative_tokens=4))
        assert [essence(a) for a in answers] == want, flags
        for k in saw:
            saw[k] += sum(a["usage"][k] for a in answers)
    assert all(saw.values()), saw


@pytest.mark.parametrize("family", HYBRIDS)
def test_no_setting_and_no_other_request_changes_a_request_of_a_hybrid(tmp_path, family):
    cube, folder = test_hybrid, test_hybrid.folder(family)
    axes = [sum(flags, []) for flags in itertools.product(cube.CHUNKS.values(), cube.POOL.values())]
    some = cube.requests() if NIGHTLY else cube.requests()[:6]
    want = [cube.alone(family, i) for i in range(len(some))]
    runs = share(zip(axes, itertools.cycle(SHAPES)), HYBRIDS.index(family), of=2)
    check_cube(folder, head_for(tmp_path, folder), some, want, runs, cube.BASE,
               ["preemptions", "cached_tokens", "accepted_draft_tokens"])


@pytest.mark.skipif(not golden.EXACT_RANKS, reason="GPUs add in another order")
@pytest.mark.parametrize("family", FOLDERS)
def test_two_ranks_give_the_bits_of_one(tmp_path, folders, family):
    """The module sharded like the model, or whole on every rank."""
    some, want, head = test_cube.requests()[2:6], alone(family)[2:6], head_for(tmp_path, folders[family])
    for how, more in itertools.product(SHAPES, ({}, {"draft_tensor_parallel_size": 1})):
        answers = golden.generate(folders[family], some, "--tensor-parallel-size", "2", *shaped(how, head, **more))
        assert [essence(a) for a in answers] == want, how


# ---- what does not fit

def refusal(folder, *flags):
    with pytest.raises(AssertionError) as e:
        golden.generate(folder, few_requests()[:1], *flags)
    return str(e.value)


def test_a_missing_module_is_named(tmp_path):
    assert "there is neither mtp.fc.weight nor model.layers.4.eh_proj.weight" in refusal("llama-2", *speculative(method="mtp"))
    tensors = heads.mtp_tensors(golden.config("llama-2"))
    lacks = {k: v for k, v in tensors.items() if k != "mtp.layers.0.mlp.up_proj.weight"}
    folder = heads.with_tensors("llama-2", tmp_path / "lacks", lacks)
    assert "there is no tensor mtp.layers.0.mlp.up_proj.weight" in refusal(folder, *speculative(method="mtp"))
    folder = heads.with_tensors("llama-2", tmp_path / "of two", tensors, mtp_num_hidden_layers=2)
    assert "there is no tensor mtp.layers.1." in refusal(folder, *speculative(method="mtp"))
    wide = {**tensors, "mtp.fc.weight": heads.numpy.zeros((64, 130), heads.F32)}
    folder = heads.with_tensors("llama-2", tmp_path / "wide", wide)
    assert "tensor mtp.fc.weight has shape [64, 130], but config.json requires [64, 128]" in refusal(
        folder, *speculative(method="mtp"))
    assert "'model' must not be given" in refusal("llama-2", *speculative(method="mtp", model="x"))
    assert "modules of gemma2 are not supported" in refusal("gemma-2", *speculative(method="mtp"))


def test_a_head_that_does_not_fit_is_refused_by_name(tmp_path):
    config = {**heads.EAGLE3, "hidden_size": 64, "vocab_size": 384, "draft_vocab_size": 100,
              "eagle_aux_hidden_state_layer_ids": [1, 2, 3]}
    tensors, n = heads.eagle3_tensors(config, 64, 3), itertools.count()

    def says(sentence, with_tensors=None, **keys):
        folder = heads.eagle3_folder(tmp_path / str(next(n)), {**config, **keys}, {**tensors, **(with_tensors or {})})
        assert sentence in refusal("llama-2", *speculative(method="eagle3", model=folder))

    def moved(i, to):
        d2t = tensors["d2t"].copy()
        d2t[i] = to - i
        return {"d2t": d2t}

    numpy = heads.numpy
    says("target_hidden_size is 128, but the model's hidden_size is 64", target_hidden_size=128)
    says("the head was made for another model", {"fc.weight": numpy.zeros((64, 384), heads.F32)})
    says("vocabulary has 400 ids, the model's 384", vocab_size=400)
    says("draft_vocab_size must be an integer from 1 to 384", draft_vocab_size=385)
    says("tensor d2t maps to an id outside the vocabulary", moved(7, 384))
    says("tensor d2t maps to an id outside the vocabulary", moved(7, -1))
    says("tensor d2t maps two ids to the same id", moved(7, int(tensors["d2t"][8] + 8)))
    says("tensor d2t does not have one I64 for each", {"d2t": tensors["d2t"][:50]})
    says("tensor t2d does not mark exactly the ids", {"t2d": ~tensors["t2d"]})
    says("of 2 layers of llama is not supported", num_hidden_layers=2)
    says("must be up to 4 ascending numbers from 1 to 4", eagle_aux_hidden_state_layer_ids=[1, 3, 5])
    says("must be up to 4 ascending numbers from 1 to 4", eagle_aux_hidden_state_layer_ids=[2, 2])
    says("norm_before_fc of an EAGLE-3 head is not supported", norm_before_fc=True)
    says("needs an embedding and an lm_head of its own", heads.eagle3_tensors({**config, "hidden_size": 48}, 64, 3),
         hidden_size=48)
    lacks = {k: v for k, v in tensors.items() if k != "d2t"}
    folder = heads.eagle3_folder(tmp_path / "lacks", config, lacks)
    assert "tensor d2t is missing" in refusal("llama-2", *speculative(method="eagle3", model=folder))
