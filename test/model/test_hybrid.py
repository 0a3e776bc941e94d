# SPDX-License-Identifier: Apache-2.0
"""Models with recurrent state and attention: the cube for them (prompts longer than the state's blocks, few snapshots
as well as small pools), and how much the prefix cache finds and recomputes."""
import functools
import itertools
import json
import os
import random
import urllib.request

import pytest

import golden
from nightly import NIGHTLY, share
from test_cube import DRAFT, NGRAM, THREADS, essence

HYBRIDS = ["qwen3.5", "qwen3.5-moe", "nemotron-nano-2", "qwen3-next", "kimi-linear", "ling-3", "nemotron-3-nano",
           "nemotron-3-super", "granite-4", "falcon-h1", "bamba", "lfm2", "lfm2-moe", "lfm3", "olmo-hybrid", "minimax-1",
           "glm-5-next"]
THROUGHOUT = HYBRIDS if NIGHTLY else HYBRIDS[:3]  # run all of the cube (test_cube.py): dense, with experts, with Mamba-2
KINDS = ["qwen3.5", "nemotron-nano-2", "kimi-linear", "lfm2"]  # one for each kind of state
BLOCK, EVERY = 64, 512    # positions of a block of state; tokens between two snapshots
STRANGERS = [os.path.join(golden.GOLDEN, f) for f in ("llama-tied", "llama-3")]  # attention only, the same vocabulary
BASE = ["--max-model-len", "512", "--block-size", "16"]


def folder(family):
    return os.path.join(golden.FAMILIES, family)


def speculative(config):
    return ["--speculative-config", json.dumps(config)]


def tree(*models, **more):
    return speculative({"method": "tree", "model": list(models), "fixed": True, **more})


CHUNKS = {"whole": [], "chunked": ["--max-num-batched-tokens", "23", "--max-num-seqs", "9"]}
DRAFTS = {"plain": [], "ngram": ["--speculative-config", NGRAM], "draft": ["--speculative-config", DRAFT % STRANGERS[0]],
          "tree": tree(STRANGERS[0], num_speculative_tokens=4, tree_width=3, tree_nodes=14),
          "two drafts": tree(*STRANGERS, num_speculative_tokens=3, tree_nodes=40, prompt_lookup_max=4,
                             prompt_lookup_min=1)}
POOL = {"large pool": [], "tiny pool": ["--num-gpu-blocks-override", "37"], "few states": ["--state-snapshots", "3"],
        "no cache": ["--no-enable-prefix-caching", "--num-gpu-blocks-override", "37"]}
CUBE = list(itertools.product(CHUNKS, DRAFTS, POOL))


def requests():
    """Like the requests of the cube, but several blocks of state long: greedy and sampled, with and without a shared
    prefix."""
    rng = random.Random(7)
    shared = [rng.randrange(3, 378) for _ in range(330)]
    out = []
    for i in range(10):
        prompt = shared[: 75 * (i % 5)] + [rng.randrange(3, 378) for _ in range(1 + 7 * i)]
        if i % 3 == 0:
            prompt += [5, 6, 7, 8] * 6
        r = {"prompt_token_ids": prompt, "max_tokens": 70, "logprobs": 2, "ignore_eos": True, "seed": i,
             "priority": -(i % 3), "temperature": 0 if i % 2 == 0 else 1.0}
        if i % 4 == 1:
            r.update(frequency_penalty=0.7, presence_penalty=0.2, repetition_penalty=1.1, top_k=40, top_p=0.9)
        if i % 4 == 3:
            r.update(n=4, min_p=0.02)
        out.append(r)
    return out


@functools.cache
def alone(family, i):
    """The answer to request i, alone in the engine."""
    return essence(golden.generate(folder(family), [requests()[i]], "--no-enable-prefix-caching", *BASE)[0])


@pytest.mark.parametrize("family", THROUGHOUT)
def test_no_setting_and_no_other_request_changes_a_request(family):
    saw = {"preemptions": 0, "cached_tokens": 0, "recomputed_tokens": 0, "accepted_draft_tokens": 0}
    asked = requests() if NIGHTLY else requests()[:6]
    for (chunks, how, pool), threads in share(zip(CUBE, itertools.cycle(THREADS)), THROUGHOUT.index(family), of=12):
        flags = CHUNKS[chunks] + DRAFTS[how] + POOL[pool] + BASE + ["--threads", threads]
        answers = golden.generate(folder(family), asked, *flags)
        for i, have in enumerate(answers):
            assert essence(have) == alone(family, i), f"{family}, {chunks}, {how}, {pool}, {threads} threads: request {i}"
            for k in saw:
                saw[k] += have["usage"][k]
    assert all(saw.values()), saw  # without these events the cube would prove nothing


@pytest.mark.skipif(not golden.EXACT_RANKS, reason="GPUs add in another order")
@pytest.mark.parametrize("family", HYBRIDS)
def test_two_ranks_and_small_chunks_give_the_bits_of_one(family):
    n = 4 if NIGHTLY or family in THROUGHOUT else 3  # the last one has four samples
    some, want = requests()[1:n], [alone(family, i) for i in range(1, n)]
    tree = ["--tensor-parallel-size", "2", *DRAFTS["tree"]]
    threads = golden.TWO_THREADS if NIGHTLY or family in THROUGHOUT else []
    ngram = ["--tensor-parallel-size", "2", *CHUNKS["chunked"], *DRAFTS["ngram"], *threads]
    small = [*CHUNKS["chunked"], *POOL["tiny pool"]]
    for flags in (ngram, tree, small) if NIGHTLY else (ngram, tree if family in KINDS else small):
        answers = golden.generate(folder(family), some, *flags, *BASE)
        assert [essence(a) for a in answers] == want, f"{family}, {flags}"


# ---- hits of the prefix cache: requests one after the other


def in_turn(family, prompts, *flags, **more):
    asked = [{"prompt_token_ids": p, "max_tokens": 3, "temperature": 0, "logprobs": 1, "ignore_eos": True, **more}
             for p in prompts]
    return golden.generate(folder(family), asked, "--max-num-seqs", "1", "--max-model-len", "4096", *flags)


@pytest.mark.parametrize("family", THROUGHOUT)
@pytest.mark.parametrize("shared", [1600, 1500])
def test_a_longer_shared_prefix_costs_no_hits(family, shared):
    """Prompts of 2,200 tokens that diverge after 1,600 or 1,500."""
    rng = random.Random(shared)
    begin = [rng.randrange(3, 378) for _ in range(shared)]
    prompts = [begin + [3 + i] + [rng.randrange(3, 378) for _ in range(2200 - shared - 1)] for i in range(6)]
    answers = in_turn(family, prompts)
    cached = [a["usage"]["cached_tokens"] for a in answers]
    again = [a["usage"]["recomputed_tokens"] for a in answers]
    assert cached[0] == 0 and all(shared - EVERY <= n <= shared for n in cached[1:]), cached
    assert all(n > shared - BLOCK - 16 for n in cached[2:]), cached  # the branch is detected once
    assert all(n <= EVERY for n in again), again
    uncached = in_turn(family, prompts[-2:], "--no-enable-prefix-caching")
    assert [essence(a) for a in uncached] == [essence(a) for a in answers[-2:]]


@pytest.mark.parametrize("family", ["qwen3.5"])
def test_little_is_recomputed_wherever_prompts_diverge(family):
    rng = random.Random(3)
    whole = [rng.randrange(3, 378) for _ in range(1300)]
    places = [1, 15, 16, 63, 64, 65, 300, 511, 512, 513, 700, 1023, 1024, 1025, 1180, 1299, 1300]
    prompts = [whole] + [whole[:at] + [3 + at % 300, 4 + at % 300, 5] for at in places]
    answers = in_turn(family, prompts, "--block-size", "16", "--max-num-batched-tokens", "640")
    for at, answer in zip(places, answers[1:]):
        usage = answer["usage"]
        assert usage["recomputed_tokens"] <= EVERY, (at, usage)
        assert usage["cached_tokens"] + usage["recomputed_tokens"] >= at // 16 * 16, (at, usage)
    uncached = in_turn(family, prompts, "--no-enable-prefix-caching", "--max-num-batched-tokens", "77")
    assert [essence(a) for a in uncached] == [essence(a) for a in answers]


@pytest.mark.parametrize("family", ["qwen3.5"])
def test_a_conversation_resumes_from_its_answers_states(family):
    prompt, cached, known = list(range(3, 160)), [], 0
    prompts = []
    for turn in range(4):
        prompts.append(list(prompt))
        answer = in_turn(family, [prompt], max_tokens=80)[0]["outputs"][0]["token_ids"]
        prompt += answer + [7, 8, 9] * (5 + turn)
    answers = in_turn(family, prompts, max_tokens=80)
    for asked, a in zip(prompts, answers):
        assert a["usage"]["cached_tokens"] == known // BLOCK * BLOCK
        known = len(asked) + 80 - 1  # the row of the last token was never computed


# ---- usage and metrics


def test_usage_and_metrics_report_recomputed_tokens(tmp_path):
    from test_demo_server import Server, can_serve
    if not can_serve():
        pytest.skip("built without the server")
    whole = list(range(3, 303))

    def post(server, path, body):
        request = urllib.request.Request(f"http://127.0.0.1:{server.port}{path}", json.dumps(body).encode(),
                                         {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as reply:
            return json.load(reply)

    with Server(tmp_path / "log", "--mamba-block-size", "128", "--mamba-cache-mode", "align", *BASE,
                model=folder("qwen3.5")) as server:
        body = {"prompt": whole, "max_tokens": 2}
        details = [post(server, "/v1/completions", {**body, "prompt": whole[:n]})["usage"]["prompt_tokens_details"]
                   for n in (300, 300, 250)]
        assert [d["cached_tokens"] for d in details] == [0, 256, 128]
        assert [d["recomputed_tokens"] for d in details] == [0, 32, 112]
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=60) as reply:
            lines = [line for line in reply.read().decode().splitlines() if line.startswith("sluice_")]
        metrics = {line.split("{")[0]: float(line.rsplit(" ", 1)[1]) for line in lines}
        assert metrics["sluice_prefix_cache_recomputed_total"] == 32 + 112
        assert 0 < metrics["sluice_state_snapshots_used"] < metrics["sluice_state_snapshots"]
