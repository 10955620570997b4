"""Accepts a drafted token if it is the target's most likely token.

Blockwise Parallel Decoding for Deep Autoregressive Models, https://arxiv.org/abs/1811.03115

    x accepted  iff  x = argmax p(. | its prefix);  next = argmax p

Exact: greedy. The temperature must be 0, since this rule ignores every other probability.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from ...ops.confidence import suits_numpy
from ...registry import register
from ...traits import Trait
from ..contracts import Acceptance, Draft, TargetDistributions, Uniforms, Verdict
from ..ops.tree_walk import descend, reached


@register(
    "greedy",
    exact="greedy",
    checked="golden/acceptance golden/heads golden/llamagen reference:samplers.ar_toys.plain_greedy",
)
class Greedy(Acceptance):
    provides = frozenset({Trait.FOLLOWS_PICK, Trait.LIKELIEST_ONLY, Trait.NEEDS_NO_HOST})

    def accept(self, draft: Draft, distributions: TargetDistributions, uniforms: Uniforms, state: None) -> Verdict:
        return follow(draft, distributions.pick)


def follow(draft: Draft, pick: Tensor) -> Verdict:
    """Descends from node 0 to the child whose token is its parent's `pick` [B, T], as long as there is one.

    Greedy decoding if the pick is the argmax; exact sampling if it is a sample of each node's distribution.
    """
    if draft.width == 1:
        path, count, tested, ratio = (
            _shared_nothing(len(pick)) if suits_numpy(pick) else _nothing(len(pick), pick.device)
        )
        return Verdict(path, count, pick.squeeze(1), tested, ratio, pick=pick)
    if draft.preaccepted is None and suits_numpy(pick):
        return _follow_chains(draft, pick) if draft.parents is None else _follow_on_host(draft, pick)
    if draft.parents is None:
        same = draft.tested & pad(draft.tokens[:, 1:] == pick[:, :-1], (1, 0))
    else:
        same = draft.tested & (draft.tokens == pick.gather(1, draft.parent.clamp(min=0)))
    accepted = same if draft.preaccepted is None else same | (draft.tested & draft.preaccepted)
    path, count = descend(draft, accepted)
    end = path.gather(1, count[:, None])
    tested = reached(draft, path, count)
    if draft.preaccepted is not None:
        tested &= ~draft.preaccepted
    return Verdict(path, count, pick.gather(1, end)[:, 0], tested, same.float(), pick=pick)


def _nothing(rows: int, device: torch.device) -> tuple[Tensor, ...]:
    """Path, count, nodes tested and ratios where only node 0 was fed."""
    path = torch.zeros(rows, 1, dtype=torch.int64, device=device)
    return path, path.squeeze(1), path.bool(), path.float()


@lru_cache(maxsize=8)
def _shared_nothing(rows: int) -> tuple[Tensor, ...]:
    """`_nothing` on a CPU, the same for all rounds: right after a forward each small operation takes 10 us or more."""
    with torch.inference_mode(False):
        return _nothing(rows, torch.device("cpu"))


def _follow_chains(draft: Draft, pick: Tensor) -> Verdict:
    """Like `follow`, for chains without `preaccepted` on a CPU, where numpy's lower overhead wins for so few nodes."""
    picks, order = pick.numpy(), np.arange(draft.width)
    real = (order > 0) & (order < draft.sizes[:, None])
    if draft.verify is not None:
        real &= draft.verify.numpy()
    same = np.zeros(real.shape, dtype=bool)
    np.equal(draft.tokens.numpy()[:, 1:], picks[:, :-1], out=same[:, 1:])
    same &= real
    count = np.logical_and.accumulate(same[:, 1:], 1).sum(1)
    return Verdict(
        torch.arange(draft.width).expand_as(draft.tokens),
        torch.from_numpy(count),
        torch.from_numpy(picks[np.arange(len(picks)), count]),
        torch.from_numpy(real & (order <= count[:, None] + 1)),
        torch.from_numpy(same.astype(np.float32)),
        pick=pick,
    )


def _follow_on_host(draft: Draft, pick: Tensor) -> Verdict:
    """Like `follow`, for trees without `preaccepted` on a CPU, where Python numbers are faster for so few nodes."""
    tokens, parents, tests, picks = (part.tolist() for part in (draft.tokens, draft.parent, draft.tested, pick))
    rows = zip(tokens, parents, tests, picks, strict=True)
    results = [_follow_row(*row, deepest=draft.deepest) for row in rows]
    paths, counts, ends, compared, fits = zip(*results, strict=True)
    path, count, end = (torch.tensor(each, device="cpu") for each in (paths, counts, ends))
    tested, ratio = torch.tensor(compared, device="cpu"), torch.tensor(fits, dtype=torch.float32, device="cpu")
    return Verdict(path, count, end, tested, ratio, pick=pick)


def _follow_row(
    tokens: list[int], parents: list[int], tested: list[bool], pick: list[int], *, deepest: int
) -> tuple[list[int], int, int, list[bool], list[bool]]:
    """`follow` for one row: path, count, next token, the nodes compared, and those equal to the pick."""
    path, along = [0], [True]
    compared, fits = [False], [False]
    for node in range(1, len(tokens)):
        above = parents[node]
        fits.append(tested[node] and tokens[node] == pick[above])
        compared.append(tested[node] and along[above])
        along.append(fits[node] and above == path[-1])
        if along[node]:
            path.append(node)
    count = len(path) - 1
    return path + path[-1:] * (deepest - count), count, pick[path[-1]], compared, fits
