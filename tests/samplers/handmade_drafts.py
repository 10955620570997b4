"""Drafts, distributions and random numbers made by hand, to test acceptances without a model or a loop."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
import torch
from torch import Tensor

from pardec.samplers.speculative.contracts import Acceptance, Draft, TargetDistributions, Verdict


class Given:
    """Given uniforms [B, T], one per node; the next token is the likeliest of its distribution, which `left` stores."""

    def __init__(self, uniforms: Tensor) -> None:
        self.uniforms, self.left = uniforms, Tensor()

    def accept(self, node: int, tested: Tensor, token: Tensor) -> Tensor:
        return self.uniforms[:, node]

    def accepts(self, width: int) -> Tensor:
        return self.uniforms[:, :width]

    def draw(self, weights: Tensor, purpose: str, node: int = 0) -> Tensor:
        self.left = weights / weights.sum(-1, keepdim=True)
        return weights.argmax(-1)

    def noise(self, positions: Tensor, purpose: str, width: int, *, fixed: bool = False) -> Tensor:
        """The same number for every request, so that a draw gives the likeliest token."""
        return torch.full((*positions.shape, width), 0.5, dtype=torch.float64)


class InOrder:
    """Random numbers of one row: recorded uniforms in the order of the tests; other draws are errors."""

    def __init__(self, uniforms: Sequence[float]) -> None:
        self.uniforms, self.used, self.left = list(uniforms), 0, Tensor()

    def accept(self, node: int, tested: Tensor, token: Tensor) -> Tensor:
        assert tested.tolist() == [True]
        self.used += 1
        return torch.tensor([self.uniforms[self.used - 1]], dtype=torch.float64)

    draw, noise = Given.draw, Given.noise


def distributions(p: Tensor, *, greedy: bool = False) -> TargetDistributions:
    """Target distributions whose softmax is `p` [B, T, V]."""
    return TargetDistributions(p.log(), p.log(), greedy)


def tree(tokens: Tensor, parents: Sequence[int] | None, q: Tensor | None = None, **more: Tensor) -> Draft:
    """A draft of equal rows; `tokens` [B, T] with the root, `parents` None for a chain."""
    sizes, base = np.full(len(tokens), tokens.shape[1]), np.full(len(tokens), 7)
    if parents is None:
        return Draft(tokens, sizes, base, q=q, **more)  # type: ignore[arg-type]
    depths = [0]
    for parent in parents[1:]:
        depths.append(depths[parent] + 1)
    at = torch.tensor(parents), torch.tensor(depths)
    return Draft(tokens, sizes, base, *at, levels=max(depths), q=q, **more)  # type: ignore[arg-type]


def emitted(rule: Acceptance, p: Tensor, q: Tensor, k: int, *, replacement: bool) -> tuple[Tensor, float]:
    """The distribution of the first token after a node with `k` siblings drawn from `q` [V], and the acceptance rate.

    Every tuple of siblings is a row, weighted by its probability. All tests fail, so that the rule gives the
    probability of accepting each sibling, and the residual distribution at the end. Nothing is drawn.
    """
    vocab = len(p)
    draws = torch.tensor(list(product(range(vocab), repeat=k)))
    if not replacement:
        draws = draws[torch.tensor([len(set(row)) == k for row in draws.tolist()])]
    own, weight = [torch.zeros(len(draws), vocab, dtype=p.dtype)], torch.ones(len(draws), dtype=p.dtype)
    gone = torch.zeros(len(draws), vocab, dtype=torch.bool)
    for j in range(k):
        distribution = q.expand(len(draws), -1).masked_fill(gone, 0)
        distribution = distribution / distribution.sum(-1, keepdim=True)
        own.append(distribution)
        weight = weight * distribution.gather(1, draws[:, j, None])[:, 0]
        if not replacement:
            gone = gone.scatter(1, draws[:, j, None], True)
    draft = tree(torch.nn.functional.pad(draws, (1, 0)), [-1] + [0] * k, torch.stack(own, 1))
    uniforms = Given(torch.full(draft.tokens.shape, torch.inf, dtype=torch.float64))
    made = rule.accept(draft, distributions(p.expand(len(draws), k + 1, vocab)), uniforms, None)
    assert made.ratio is not None
    return _mixed(draws, weight, made, uniforms.left)


def _mixed(draws: Tensor, weight: Tensor, made: Verdict, left: Tensor) -> tuple[Tensor, float]:
    assert made.ratio is not None
    distribution, going = torch.zeros_like(left[0]), weight
    for j in range(draws.shape[1]):
        uniform = made.ratio[:, j + 1]
        distribution.scatter_add_(0, draws[:, j], going * uniform)
        going = going * (1 - uniform)
    return distribution + (going[:, None] * left).sum(0), float((weight - going).sum())


def pairs(count: int, sizes: Sequence[int] = (3, 4, 5, 6), seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    """Random distributions p and q in float64, peaked and flat."""
    drawn = np.random.RandomState(seed)
    found = []
    for i in range(count):
        size = sizes[i % len(sizes)]
        both = drawn.dirichlet([0.6] * size, 2)
        both = (both + 1e-6) / (both + 1e-6).sum(1, keepdims=True)
        found.append((torch.from_numpy(both[0]), torch.from_numpy(both[1])))
    return found
