# SPDX-License-Identifier: Apache-2.0
"""The held-out tasks on a PyTorch model, without any server: greedy, bf16."""

import torch

import corpus
import judge
import tokenizer as tok

# Limits of a batch: prompt tokens (fewer without a GPU, since a mask of all pairs is made) and
# cases; and the lengths of answers that share a batch.
BATCH_TOKENS, BATCH_CASES = 250_000 if torch.cuda.is_available() else 16_000, 512
ANSWER_LENGTHS = (64, 256, 1024)


class Answers:
    """All held-out cases, encoded once, sorted by length into batches."""

    def __init__(self, encoder, n_per_task, tasks=None):
        self.encoder = encoder
        self.cases = [c for task in tasks or corpus.TASKS for c in corpus.cases(task, n_per_task)]
        self.prompts = [encoder.prompt(case) for case in self.cases]
        self.ends = [encoder.tokenizer.token_to_id(t) for t in (tok.IM_END, tok.EOS)]
        self.pad = encoder.tokenizer.token_to_id(tok.PAD)

    def batches(self):
        """Yields (cases, most tokens of an answer)."""
        for longest in ANSWER_LENGTHS:
            shorter = max((n for n in ANSWER_LENGTHS if n < longest), default=0)
            chosen = [
                i for i, case in enumerate(self.cases) if shorter < case["max_tokens"] <= longest
            ]
            batch = []
            for i in sorted(chosen, key=lambda i: len(self.prompts[i])):
                if batch and (
                    len(batch) >= BATCH_CASES or len(batch) * len(self.prompts[i]) > BATCH_TOKENS
                ):
                    yield batch, longest
                    batch = []
                batch.append(i)
            if batch:
                yield batch, longest

    def of(self, model):
        """The ids of the model's answer to each case, including the end token."""
        answers = [None] * len(self.cases)
        for batch, longest in self.batches():
            found = model.generate([self.prompts[i] for i in batch], longest, self.ends, self.pad)
            for i, ids in zip(batch, found):
                answers[i] = ids
        return answers

    def accuracy(self, answers):
        """{task: share of right answers}, and the first wrong answer of each task for a person to
        look at."""
        right, wrong = {}, {}
        for case, ids in zip(self.cases, answers):
            ended = ids[-1] in self.ends
            text = self.encoder.tokenizer.decode(
                [i for i in ids if i not in self.ends], skip_special_tokens=False
            )
            good = ended and judge.is_right(case, text)
            right.setdefault(case["task"], []).append(good)
            if not good:
                wrong.setdefault(case["task"], []).append(
                    (case["messages"][-1]["content"][-200:], text, case["answer"])
                )
        return {task: sum(v) / len(v) for task, v in right.items()}, wrong

    @torch.no_grad()
    def agreement(self, draft, answers):
        """{task: share of the answers' tokens that the draft would have written too}."""
        same, total = {}, {}
        for case, prompt, ids in zip(self.cases, self.prompts, answers):
            known = torch.tensor([prompt + ids[:-1]], device=draft.norm.weight.device)
            n = known.shape[1]
            hidden = draft.hidden(known, torch.arange(n, device=known.device)[None], causal)
            guess = draft.logits(hidden[0, len(prompt) - 1 :]).argmax(-1).tolist()
            task = case["task"]
            same[task] = same.get(task, 0) + sum(a == b for a, b in zip(guess, ids))
            total[task] = total.get(task, 0) + len(ids)
        return {task: same[task] / total[task] for task in same}


def causal(q, k, v):
    groups = q.shape[2] // k.shape[2]
    q, k, v = (
        t.transpose(1, 2)
        for t in (q, k.repeat_interleave(groups, 2), v.repeat_interleave(groups, 2))
    )
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
