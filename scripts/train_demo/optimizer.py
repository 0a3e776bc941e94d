# SPDX-License-Identifier: Apache-2.0
"""Muon for the matrices, Adam for embeddings and norms."""

import torch


def orthogonal(g, steps=5):
    """Approximately the nearest matrix with equal singular values, for a stack of matrices, by a quintic
    iteration.

    The three coefficients are those of the published method (K. Jordan, 2024): they move any
    singular value in (0, 1] close to 1 in five steps.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g.bfloat16() if g.is_cuda else g  # few CPUs multiply bf16 fast
    wide = x.shape[-2] > x.shape[-1]
    if wide:
        x = x.mT
    x = x / (x.float().norm(dim=(-2, -1), keepdim=True) + 1e-7).to(x.dtype)
    for _ in range(steps):
        y = x @ x.mT
        x = a * x + (b * y + c * (y @ y)) @ x
    return x.mT if wide else x


class Optimizer:
    def __init__(self, models, lr=0.02, momentum=0.95, decay=0.05, adam_lr=0.003):
        self.lr, self.momentum, self.decay = lr, momentum, decay
        self.stacks, rest = {}, []
        for model in models:
            for name, p in model.named_parameters():
                if p.dim() == 2 and "embed" not in name and "lm_head" not in name:
                    self.stacks.setdefault(tuple(p.shape), []).append(p)
                else:
                    rest.append(p)
        self.buffers = {
            shape: torch.zeros(len(ps), *shape, device=ps[0].device)
            for shape, ps in self.stacks.items()
        }
        fused = rest[0].is_cuda
        self.adam = torch.optim.Adam(rest, lr=adam_lr, betas=(0.9, 0.95), eps=1e-8, fused=fused)
        self.adam_lr = adam_lr

    @torch.no_grad()
    def step(self, factor):
        """One update, with the learning rates multiplied by `factor`; clears the gradients."""
        lr = self.lr * factor
        for shape, parameters in self.stacks.items():
            g, held = torch.stack([p.grad for p in parameters]), self.buffers[shape]
            held.lerp_(g, 1 - self.momentum)
            update = (
                orthogonal(g.lerp(held, self.momentum)).float() * max(1, shape[0] / shape[1]) ** 0.5
            )
            torch._foreach_mul_(parameters, 1 - lr * self.decay)
            torch._foreach_add_(parameters, list(update.unbind(0)), alpha=-lr)
        for group in self.adam.param_groups:
            group["lr"] = self.adam_lr * factor
        self.adam.step()
        for parameters in self.stacks.values():
            for p in parameters:
                p.grad = None
        self.adam.zero_grad(set_to_none=True)
