# SPDX-License-Identifier: Apache-2.0
# test/run: long
"""The cube: with every combination of settings (chunks, cache, drafts, preemption, siblings, shared prefixes, ranks,
threads, grammars) and every KV format, a request's tokens and log-probabilities have the same bits as if it ran alone.

`make test` runs a part: settings in which any two values of different axes occur together (chunks, cache, drafts, pool,
threads, KV format), spread over the families; `make nightly` runs all of them for each family."""
import functools
import itertools
import json
import os
import random

import pytest

import golden
from nightly import NIGHTLY, covering, share

NEWER = [os.path.join(golden.FAMILIES, f) for f in ("mistral-small-4", "hunyuan-moe", "exaone-4", "glm-5", "gemma-3n", "hy-4",
                                                        "mistral-large-4", "minimax-m3", "longcat-flash")]
FAMILIES = ["llama-3", "gemma-2", "qwen2-moe", "gpt-oss", "deepseek-v3", *NEWER]
EVERY = [*golden.families(), *NEWER]
NGRAM = '{"method":"ngram","num_speculative_tokens":4,"prompt_lookup_min":1}'

CHUNKS = {"whole": [], "chunked": ["--max-num-batched-tokens", "23", "--max-num-seqs", "9"]}
CACHE = {"cache": [], "no cache": ["--no-enable-prefix-caching"]}
DRAFT = '{"method":"draft_model","model":"%s","num_speculative_tokens":3,"fixed":true}'


def drafts(family):
    """An unrelated draft model with the target's vocabulary, and the target as its own draft model; trees with each and with
    both."""
    same_vocab = len(golden.expected(family)["cases"][0]["last_logits"]) == 384
    stranger, own = (os.path.join(golden.GOLDEN, f) for f in ("llama-tied" if same_vocab else family, family))

    def tree(*models, **more):
        return {"method": "tree", "model": list(models), "fixed": True, **more}

    configs = {"ngram": json.loads(NGRAM), "draft": json.loads(DRAFT % stranger), "own draft": json.loads(DRAFT % own),
               "static tree": tree(own, expansion=[1, 2, 3, 1]),
               "dynamic tree": tree(stranger, num_speculative_tokens=4, tree_width=3, tree_nodes=14),
               "two drafts": tree(stranger, own, num_speculative_tokens=3, tree_nodes=40, prompt_lookup_max=4,
                                  prompt_lookup_min=1)}
    return {"plain": [], **{how: ["--speculative-config", json.dumps(c)] for how, c in configs.items()}}


DRAFTS = ["plain", "ngram", "draft", "own draft", "static tree", "dynamic tree", "two drafts"]
POOL = {"large pool": [], "tiny pool": ["--num-gpu-blocks-override", "17"]}
THREADS = ["2", "1", "1"]  # three entries, so that every value of the other axes is combined with both
KV = ["fp8", "fp8_per_token_head", "int8_per_token_head", "int8", "int4"]  # each case runs unquantised and with one of these
RANKS = {"one rank": [], "two ranks": ["--tensor-parallel-size", "2"]}


def requests():
    """Greedy and sampled requests, with and without shared prefixes, some repetitive enough for n-gram drafts."""
    rng = random.Random(7)
    shared = [rng.randrange(3, 378) for _ in range(70)]
    out = []
    for i in range(9):
        prompt = shared[: 18 * (i % 5)] + [rng.randrange(3, 378) for _ in range(1 + 7 * i)]
        if i % 3 == 0:
            prompt += [5, 6, 7, 8] * 6
        r = {"prompt_token_ids": prompt, "max_tokens": 24, "logprobs": 2, "ignore_eos": True, "seed": i,
             "priority": -(i % 3)}  # later ones preempt decoding sequences
        r["temperature"] = 0 if i % 2 == 0 else 1.0
        if i % 4 == 1:
            r.update(frequency_penalty=0.7, presence_penalty=0.2, repetition_penalty=1.1, top_k=40, top_p=0.9)
        if i % 4 == 3:
            r.update(n=4, min_p=0.02)
        out.append(r)
    return out + constrained(shared)


CONSTRAINTS = [
    {"json": {"type": "object", "properties": {"ab": {"type": "array", "items": {"type": "string", "maxLength": 4}},
                                               "c": {"type": "integer"}}, "required": ["ab", "c"]}},
    {"regex": "([a-f]{2,5}(, )?)*x"},
    {"grammar": 'root ::= "(" (root | [a-c]+) ")" root?'},
    {"json": {"type": "object", "properties": {"properties": {"enum": ["properties", 12, None]},
                                               "name": {"const": "constant text"}}, "required": ["properties", "name"]}},
]


def constrained(shared):
    """Requests with a grammar: greedy, sampled, n > 1, with much forced text."""
    out = []
    for i, constraint in enumerate(CONSTRAINTS):
        r = {"prompt_token_ids": shared[: 16 * i] + [5, 6, 7, 8] * i + [9 + i], "max_tokens": 24, "logprobs": 2,
             "seed": i, "priority": -i, "temperature": 1.0 if i % 2 else 0, "structured_outputs": constraint}
        if i == 1:
            r.update(n=3, frequency_penalty=0.4, min_tokens=9)
        out.append(r)
    return out


def essence(answer):
    return [(o["token_ids"], o["logprobs"], o["top_logprobs"], o["finish_reason"]) for o in answer["outputs"]]


def difference(have, want):
    """The first place where a request's samples differ: whole answers are too long to read."""
    for sample, pair in enumerate(zip(have, want)):
        for part, a, b in zip(("token_ids", "logprobs", "top_logprobs", "finish_reason"), *pair):
            if a != b and isinstance(a, list):
                at = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
                return f"sample {sample}, {part} from {at} on: {a[at:at + 4]} and not {b[at:at + 4]}"
            if a != b:
                return f"sample {sample}, {part}: {a} and not {b}"
    return f"{len(have)} samples and not {len(want)}"


def check_same(answers, want, setting):
    for i, (answer, wanted) in enumerate(zip(answers, want, strict=True)):
        have = essence(answer)
        if have != wanted:
            pytest.fail(f"{setting}: request {i}, {difference(have, wanted)}")


def test_a_difference_is_named():
    row = ([5, 6, 7], [-1.0, -2.0, -3.0], [[], [], []], "length")
    assert difference([row, ([5, 8, 7], *row[1:])], [row, row]) == "sample 1, token_ids from 1 on: [8, 7] and not [6, 7]"
    assert difference([(*row[:3], "stop")], [row]) == "sample 0, finish_reason: stop and not length"
    assert difference([([5, 6], *row[1:])], [row]) == "sample 0, token_ids from 2 on: [] and not [7]"
    assert difference([row, row], [row]) == "2 samples and not 1"


def test_a_program_that_is_killed_is_named(monkeypatch):
    monkeypatch.setattr(golden, "RUN", ["sh", "-c", "kill -9 $$"])
    with pytest.raises(AssertionError, match="was killed by SIGKILL, after 0 answers"):
        golden.generate("llama-3", requests()[:1])


@functools.cache
def alone(family, kv):
    """Each request alone in the engine, one after the other: in `make nightly` in a process of its own, else in one lane."""
    flags = ["--no-enable-prefix-caching", "--kv-cache-dtype", kv]
    if NIGHTLY:
        return [essence(golden.generate(family, [r], *flags)[0]) for r in requests()]
    asked = [{**r, "priority": 0} for r in requests()]  # none interrupts another
    return [essence(a) for a in golden.generate(family, asked, "--max-num-seqs", "1", *flags)]


@functools.cache
def some_of(family, kv="auto"):
    """A few requests and their answers by one rank."""
    some = requests()[2:6] + requests()[-4:]
    return some, [essence(a) for a in golden.generate(family, some, "--kv-cache-dtype", kv)]


accepted = []  # draft tokens over all families: a single random model may never repeat itself


def settings(family):
    """The settings that a family runs, each of them unquantised and in one KV format. In `make test` a family has few
    formats, since each format needs separate runs of the requests alone; every family has one setting in which everything
    happens."""
    if NIGHTLY:
        cube = itertools.product(CHUNKS, CACHE, DRAFTS, POOL)
        return [(*s, threads, kv) for s, threads, kv in zip(cube, itertools.cycle(THREADS), itertools.cycle(KV))]
    rows = covering(CHUNKS, CACHE, DRAFTS, POOL, ["1", "2"], KV)
    rows = sorted(random.Random(1).sample(rows, len(rows)), key=lambda row: row[-1])
    i, n = FAMILIES.index(family), len(FAMILIES)
    mine = rows[len(rows) * i // n:len(rows) * (i + 1) // n]
    return [*mine, ("chunked", "cache", "own draft", "tiny pool", "2", mine[0][-1])]


@pytest.mark.parametrize("family", FAMILIES)
def test_no_setting_and_no_other_request_changes_a_request(family):
    saw = {"preemptions": 0, "cached_tokens": 0, "accepted_draft_tokens": 0, "parts of blocks": 0}
    base = ["--max-model-len", "256", "--block-size", "16", "--prefix-match-unit", "4"]
    for chunks, cache, how, pool, threads, coded in settings(family):
        for kv in ("auto", coded):
            flags = CHUNKS[chunks] + CACHE[cache] + drafts(family)[how] + POOL[pool] + base
            answers = golden.generate(family, requests(), *flags, "--threads", threads, "--kv-cache-dtype", kv)
            setting = f"{family}, {chunks}, {cache}, {how}, {pool}, {threads} threads, KV {kv}"
            check_same(answers, alone(family, kv), setting)
            for k in ("preemptions", "cached_tokens", "accepted_draft_tokens"):
                saw[k] += sum(a["usage"][k] for a in answers)
            saw["parts of blocks"] += sum(a["usage"]["cached_tokens"] % 16 != 0 for a in answers)
    # Without these events the cube would prove nothing.
    assert saw["preemptions"] and saw["cached_tokens"] and saw["parts of blocks"], saw
    accepted.append(saw["accepted_draft_tokens"])


# Layers with windows of 23 to 32 positions or chunks of 32, beside others or (Mistral) alone.
WINDOWED = ["gpt-oss", "gemma-2", "gemma-3", "mistral", "qwen2-window",
            *(os.path.join(golden.FAMILIES, f) for f in ("exaone-4", "gemma-3n", "gemma-4", "llama-4", "mimo-v2-flash"))]
PAGES = {"whole": ["--window-pages", "40"], "chunked": ["--window-pages", "12"]}  # hardly more than a sequence needs


@pytest.mark.parametrize("family", WINDOWED)
def test_pages_of_windows_change_no_request(family):
    saw = {"preemptions": 0, "cached_tokens": 0, "recomputed_tokens": 0}
    base = ["--max-model-len", "256", "--block-size", "16", "--prefix-match-unit", "4"]
    rows = share(covering(CHUNKS, DRAFTS, POOL, ["1", "2"], KV), WINDOWED.index(family), of=len(WINDOWED))
    for chunks, how, pool, threads, coded in [*rows, ("chunked", "own draft", "tiny pool", "2", rows[0][-1])]:
        for kv in ("auto", coded):
            flags = CHUNKS[chunks] + PAGES[chunks] + drafts(family)[how] + POOL[pool] + base
            answers = golden.generate(family, requests(), *flags, "--threads", threads, "--kv-cache-dtype", kv)
            check_same(answers, alone(family, kv), f"{family}, {chunks}, {how}, {pool}, {threads} threads, KV {kv}")
            for k in saw:
                saw[k] += sum(a["usage"].get(k) or 0 for a in answers)
    # A sequence that begins with a chunk needs no page before it.
    assert saw["preemptions"] and saw["cached_tokens"] and (saw["recomputed_tokens"] or "llama-4" in family), saw


def test_drafts_were_accepted():
    if not accepted:
        pytest.skip("the cube ran in other processes")
    assert sum(accepted) > 0


@pytest.mark.parametrize("family", EVERY)
def test_chunks_of_any_size_give_the_same_bits(family):
    prompt = requests()[4]["prompt_token_ids"]
    score = [{"prompt_token_ids": prompt, "max_tokens": 0, "prompt_logprobs": True}]
    for kv in ["auto", *share(KV, EVERY.index(family), of=9)]:
        kv = ["--kv-cache-dtype", kv]
        want = golden.generate(family, score, *kv)[0]["prompt_logprobs"]
        for rows, threads in (("2", "1"), ("5", "2"), ("23", "1")):
            flags = ["--max-num-batched-tokens", rows, "--max-num-seqs", "1", "--threads", threads, *kv]
            have = golden.generate(family, score, *flags)[0]
            assert have["prompt_logprobs"] == want, f"{family}, {rows} rows a step, {kv}"


@pytest.mark.skipif(not golden.EXACT_RANKS, reason="GPUs add in another order")
@pytest.mark.parametrize("family", EVERY)
def test_two_ranks_give_the_bits_of_one(family):
    every = zip(drafts(family).items(), itertools.cycle(["auto", *KV]))
    for (how, flags), kv in share(every, EVERY.index(family), of=6):
        some, want = some_of(family, kv)
        threads = golden.TWO_THREADS if how == "ngram" and (NIGHTLY or family in FAMILIES) else []
        answers = golden.generate(family, some, *RANKS["two ranks"], *flags, *threads, "--kv-cache-dtype", kv)
        check_same(answers, want, f"{family}, {how}, KV {kv}")


def sharded(flags, n_ranks=2):
    config = json.loads(flags[1])
    return ["--speculative-config", json.dumps({**config, "draft_tensor_parallel_size": n_ranks})]


@pytest.mark.skipif(not golden.EXACT_RANKS, reason="GPUs add in another order")
@pytest.mark.parametrize("family", EVERY)
def test_the_draft_model_may_be_sharded_too(family):
    """With equal bits all drafts of a model that drafts for itself are accepted."""
    some, want = some_of(family)
    for how in share(("own draft", "dynamic tree"), EVERY.index(family), of=2):
        flags = sharded(drafts(family)[how])
        answers = golden.generate(family, some, *RANKS["two ranks"], *flags)
        check_same(answers, want, f"{family}, {how}")
        drafted, right = (sum(a["usage"][k] for a in answers) for k in ("draft_tokens", "accepted_draft_tokens"))
        assert how != "own draft" or right > 0.8 * drafted, f"{family}: {right} of {drafted}"


def test_a_sharded_draft_model_needs_as_many_ranks():
    with pytest.raises(AssertionError, match="draft_tensor_parallel_size must be 1 or"):
        golden.generate("llama-3", [], *sharded(drafts("llama-3")["own draft"], golden.N_RANKS + 1))
