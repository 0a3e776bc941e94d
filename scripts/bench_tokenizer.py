#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Encoding speed compared with Hugging Face `tokenizers`, on the same texts in the same run, on one core each.

    scripts/bench_tokenizer.py build/release/bench/engine/tokenizer_bench [TOKENIZER ...]

Texts: English and code from Python's own library, generated JSON and Chinese, in documents of 16 KB. Times are
processor time, which depends less on other load. cold: the first pass of a fresh tokenizer; warm: the best of later
passes. A TOKENIZER is a tokenizer.json or .json.gz; the default is all of this checkout (test/tokenizers and,
for real vocabularies, $SLUICE_SHARED/data/tok)."""
import gzip
import json
import os
import pathlib
import random
import subprocess
import sys
import sysconfig
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
SHARED = pathlib.Path(os.environ.get("SLUICE_SHARED", ROOT / ".." / "shared")) / "data" / "tok"
SIZE, DOCUMENT = 2_000_000, 16_384
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"


def english():
    from pydoc_data import topics
    return "\n".join(topics.topics.values())


def code():
    library = pathlib.Path(sysconfig.get_paths()["stdlib"])
    return "\n".join(p.read_text(errors="ignore") for p in sorted(library.glob("*.py")))


def records(rng):
    words = "alpha beta gamma delta user order item price total street city status open closed".split()
    while True:
        yield json.dumps({"id": rng.randrange(10**9), "name": " ".join(rng.choices(words, k=3)),
                          "email": f"{rng.choice(words)}{rng.randrange(999)}@example.com",
                          "tags": rng.choices(words, k=4), "score": round(rng.random() * 100, 4),
                          "nested": {"ok": rng.random() < 0.5, "at": "2025-06-15T12:34:56Z",
                                     "values": [rng.randrange(1000) for _ in range(5)]}}, indent=2)


CHINESE = ("的一是不了在人有我他这个们中来上大为和国地到以说时要就出会可也你对生能而子那得于着下自之年过发后作里"
           "用道行所然家种事成方多经么去法学如都同现当没动面起看定天分还进好小部其些主样理心她本前开但因只从想实"
           "日军者意无力它与长把机十民第公此已工使情明性知全三又关点正业外将两高间由问很最重并物手应战向头文体政"
           "美相见被利什二等产或新己制身果加西斯月话合回特代内信表化老给世位次度门任常先海通教儿原东声提立及比员")


def chinese(rng):
    weights = [1 / (i + 2) for i in range(len(CHINESE))]
    words = ["".join(rng.choices(CHINESE, weights, k=rng.choice([1, 2, 2, 2, 3]))) for _ in range(20000)]
    cumulative = [1 / (i + 3) for i in range(len(words))]
    while True:
        yield "".join(rng.choices(words, cumulative, k=rng.randrange(4, 16))) + rng.choice("，。，。！？\n")


def fill(parts):
    out, n = [], 0
    for part in parts:
        out.append(part)
        n += len(part.encode())
        if n >= SIZE:
            return "".join(out)


def documents(text):
    raw = text.replace("\0", "").encode()[:SIZE]
    return [raw[i:i + DOCUMENT].decode(errors="ignore") for i in range(0, len(raw), DOCUMENT)]


def texts():
    rng = random.Random(1)
    return {"english": documents(english()), "json": documents(fill(records(rng))),
            "code": documents(code()), "chinese": documents(fill(chinese(rng)))}


def hf(path, docs):
    from tokenizers import Tokenizer
    start = time.process_time()
    tok = Tokenizer.from_file(path)
    load = time.process_time() - start
    size = sum(len(d.encode()) for d in docs) / 1e6
    speeds = []
    for _ in range(3):
        start = time.process_time()
        n = sum(len(tok.encode(d, add_special_tokens=False).ids) for d in docs)
        speeds.append(size / (time.process_time() - start))
    return load, speeds[0], max(speeds[1:]), n


def main():
    bench = sys.argv[1]
    try:
        import tokenizers
    except ImportError:
        print("skipped: the Python package tokenizers is not installed")
        return
    wanted = sys.argv[2:] or sorted(map(str, (ROOT / "test" / "tokenizers").glob("*.json")))
    wanted = [w for w in wanted if "vectors" not in w]
    if not sys.argv[2:] and SHARED.exists():
        wanted += [str(SHARED / f"{n}.json.gz") for n in ("llama-3", "qwen2", "gpt-oss", "llama-2")]
    print(f"MB/s of text, one core; Hugging Face tokenizers {tokenizers.__version__}")
    print(f"{'tokenizer':22}{'text':9}{'HF cold':>8}{'warm':>7}{'ours cold':>11}{'warm':>7}"
          f"{'ratio cold':>12}{'warm':>6}{'stream':>9}{'load s: HF':>12}{'ours':>7}")
    with tempfile.TemporaryDirectory() as tmp:
        files = {}
        for name, docs in texts().items():
            files[name] = f"{tmp}/{name}"
            pathlib.Path(files[name]).write_bytes(b"".join(d.encode() + b"\0" for d in docs))
        for w in wanted:
            name = pathlib.Path(w).name.split(".")[0]
            path = f"{tmp}/{name}.json"
            pathlib.Path(path).write_bytes(gzip.open(w).read() if w.endswith(".gz")
                                           else pathlib.Path(w).read_bytes())
            for kind, docs in texts().items():
                load, cold, warm, n = hf(path, docs)
                ours = subprocess.run([bench, path, files[kind]], stdout=subprocess.PIPE, check=True)
                o_load, o_cold, o_warm, o_n, o_stream = map(float, ours.stdout.split())
                note = "" if n == o_n else f"  COUNTS DIFFER: {n} and {int(o_n)}"
                print(f"{name:22}{kind:9}{cold:8.2f}{warm:7.2f}{o_cold:11.1f}{o_warm:7.1f}"
                      f"{o_cold / cold:12.1f}{o_warm / warm:6.1f}{o_stream:9.0f}{load:12.2f}"
                      f"{o_load:7.3f}{note}", flush=True)


if __name__ == "__main__":
    main()
