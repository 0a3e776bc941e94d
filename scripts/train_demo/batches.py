# SPDX-License-Identifier: Apache-2.0
"""Packed batches from worker processes, in an order that depends on the seed alone.

Batch b holds documents drawn from shard b, packed into rows so that no document crosses a row.
Worker w makes batches w, w + workers, and so on; the trainer takes them in turn, so their order does not depend on the
workers' speed.
"""

import multiprocessing
import queue

import numpy as np

import corpus
import tokenizer as tok

# Documents get longer as training goes on: (tokens seen so far, longest document).
CURRICULUM = ((0, 512), (60_000_000, 1536), (150_000_000, tok.MAX_TOKENS))


def longest_at(n_seen, curriculum, scale):
    return [length for begin, length in curriculum if n_seen >= begin * scale][-1]


def pack(documents, n_rows, row, pad):
    """First fit, longest first. Returns arrays over n_rows * row tokens, and the starts of the
    documents."""
    rows, free = [[] for _ in range(n_rows)], [row] * n_rows
    for ids, weights in sorted(documents, key=lambda d: -len(d[0])):
        i = next((i for i in range(n_rows) if free[i] >= len(ids)), None)
        if i is not None:
            rows[i].append((ids, weights))
            free[i] -= len(ids)
    n = n_rows * row
    ids, targets = np.full(n, pad, np.uint16), np.full(n, pad, np.uint16)
    weights, positions = np.zeros(n, np.uint8), np.zeros(n, np.uint16)
    starts = []
    for r, held in enumerate(rows):
        at = r * row
        for document, weight in held:
            k = len(document)
            starts.append(at)
            ids[at : at + k] = document
            targets[at : at + k - 1] = document[1:]
            weights[at : at + k - 1] = weight[1:]
            positions[at : at + k] = np.arange(k)
            at += k
        if free[r]:
            starts.append(at)
            positions[at : at + free[r]] = np.arange(free[r])
    return ids, targets, weights, positions, np.array(starts + [n], np.int32)


def make_batch(encoder, b, n_rows, row, curriculum, scale):
    rng, n = corpus.shard_rng(b), n_rows * row
    longest = min(longest_at(b * n, curriculum, scale), row)
    documents, total = [], 0
    while total < n:
        ids, weights = encoder.document(corpus.document(rng, longest))
        if len(ids) <= longest:
            documents.append((ids, weights))
            total += len(ids)
    return pack(documents, n_rows, row, encoder.tokenizer.token_to_id(tok.PAD))


def work(path, worker, n_workers, first, out, shape):
    encoder = tok.Encoder(tok.tokenizers.Tokenizer.from_file(path))
    b = first + worker
    while True:
        out.put(make_batch(encoder, b, *shape))
        b += n_workers


class Batches:
    def __init__(self, tokenizer_path, n_workers, n_rows, row, scale=1.0, first=0, curriculum=CURRICULUM):
        """scale shortens or lengthens the curriculum; first is the number of the first batch."""
        shape = n_rows, row, curriculum, scale
        context = multiprocessing.get_context("spawn")
        self.queues = [context.Queue(3) for _ in range(n_workers)]
        self.processes = [
            context.Process(
                target=work,
                daemon=True,
                args=(str(tokenizer_path), w, n_workers, first, self.queues[w], shape),
            )
            for w in range(n_workers)
        ]
        for process in self.processes:
            process.start()
        self.taken = 0
        self.waited = 0

    def next(self):
        source = self.queues[self.taken % len(self.queues)]
        self.taken += 1
        try:
            return source.get_nowait()
        except queue.Empty:
            self.waited += 1
            return source.get(timeout=120)

    def close(self):
        for process in self.processes:
            process.terminate()
