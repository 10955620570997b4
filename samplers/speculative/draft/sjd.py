"""Samples each token of a window from the target's distribution there in the previous round, and verifies it.

Accelerating Auto-regressive Text-to-Image Generation with Training-free Speculative Jacobi Decoding,
https://arxiv.org/abs/2410.01699
MC-SJD: Maximal Coupling Speculative Jacobi Decoding, https://arxiv.org/abs/2510.24211 (SCD: refresh=coupled, gumbel)
SJD++: Improved Speculative Jacobi Decoding, https://arxiv.org/abs/2512.07503 (reuse)
SJD-PAC: Accelerating Speculative Jacobi Decoding via Proactive Drafting and Adaptive Continuation,
https://arxiv.org/abs/2603.18599 (tree; its continuation is refresh=coupled)

    x_i ~ q_i = p(. | text, x'_1 .. x'_(i-1)),  x' the tokens of the round before;  accepted iff u q_i(x_i) < p_i(x_i)
    after the first rejection every x_i is sampled again from p_i, its q_i in the next round

The distribution after node i predicts the position of node i + 1: the new sample is coupled with that node's token and
q. Fresh tokens of an image are copied from the left, in a window of 32, while text has random ones in a window of 16:
the longer window pays off if neighbours are similar and samples are coupled.

With `reuse` a token after the rejection stays where p_i gives it more than that. Which do depends on the tokens, so
that all are labelled with the mixture q' = q [p > reuse] + (1 - sum q [p > reuse]) p; with their own q, as SJD++ labels
those that stay, samples do not follow the target.

With `tree=3x3` each of the first three positions has three tokens: x_i, and two of q_i without replacement, tested one
after the other. The tree is full, and the rest of the window follows the first tokens. A position has the same tokens
below every sibling, with the q of the path of first tokens: q may be that of another prefix, which the test allows.

Deviates from the papers: each row advances by its own accepted tokens, and fresh tokens count as point masses, since
only `random` ones were sampled; with `uniform` these are tested against the uniform distribution, which matters only
for small vocabularies.
Exact: greedy, and distribution with an exact acceptance.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Annotated, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from pardec.models.errors import SpecError
from pardec.models.model import LanguageModel

from ...host_transfer import upload
from ...limits import check_nodes
from ...ops.inverse_cdf import sample
from ...registry import register
from ...rng import gumbel, wide
from ..contracts import DecodeContext, Draft, Drafter, RoundResult, Uniforms
from ..ops.trees import Template
from ..ops.verification import residual, without
from ..shape.siblings import conditional_distributions
from .jacobi_window import Init, fresh, refuse_narrow, refuse_without_image, slice_from


def coupled_sample(
    p: Tensor, old: Tensor, q: Tensor, point: Tensor, has_old: Tensor, keep: Tensor, u: Tensor
) -> Tensor:
    """A sample of each distribution p [N, V], equal to `old` [N] as often as possible (a maximal coupling).

        old stays  iff  keep q[old] < p[old],  else  x ~ norm([p - q]+),  for a point mass p without old

    `q` [N, V] is the distribution that `old` was sampled from, except where it was a `point` [N] mass; without an old
    token (`has_old` [N]) x ~ p. `keep` and `u` [N] are uniforms that no other sample of the position has used.
    """
    at = q.gather(-1, old[:, None])[:, 0].masked_fill(point, 1.0)
    stays = has_old & (keep * at < p.gather(-1, old[:, None])[:, 0])
    removed = torch.zeros_like(p, dtype=torch.bool).scatter_(-1, old[:, None], True)
    rest = torch.where(point[:, None], without(p, removed), residual(p, q))
    return torch.where(stays, old, sample(torch.where(has_old[:, None], rest, p), u))


def reuse(
    p: Tensor, old: Tensor, q: Tensor, point: Tensor, has_old: Tensor, least: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The old tokens [N] that are kept because p[old] > `least`, and the resulting distributions.

    Arguments as for `coupled_sample`. Whether a token stays depends on the token itself: of all that stand at a
    position, those that stay and those that x ~ p replaces,

        q' = q [p > least] + (1 - sum q [p > least]) p

    is the distribution, and q [p <= least], normalized, that of the old tokens that do not stay.

    Returns:
        [N] bool, which stay; [N, V] the distribution of those that do not; [N, V] q', which is p where `old` is a
        `point` mass that does not stay, and without an old token.
    """
    high = p > least
    stays = has_old & high.gather(-1, old[:, None])[:, 0]
    share = torch.where(high, q, 0)
    left = (1 - share.sum(-1, keepdim=True)).clamp(min=0)
    rest = torch.where(high, 0, q) / left.clamp(min=torch.finfo(q.dtype).tiny)
    mixed = (has_old & ~point)[:, None]
    return stays, torch.where(mixed, rest, q), torch.where(mixed, share + left * p, p)


def gumbel_sample(p: Tensor, u: Tensor) -> Tensor:
    """argmax(log p + G) for p [..., V], with Gumbel noise from uniforms `u` [..., V]; [...] int64.

    With the same noise, a slightly changed distribution mostly gives the same token.
    """
    return (wide(p).log() + gumbel(u)).argmax(-1)


def tree_sides(name: str, tree: str | None) -> tuple[int, int]:
    """Tokens per position of a tree such as 3x3, and the number of positions that have them; none is 1x0."""
    if tree is None:
        return 1, 0
    width, _, depth = tree.partition("x")
    if not (width.isdecimal() and depth.isdecimal() and 1 <= int(width) <= 8 and 1 <= int(depth) <= 4):
        raise SpecError(f"{name}: tree must be tokens x positions, at most 8x4, got {tree!r}", hint="write tree=3x3")
    return int(width), int(depth)


def siblings(sides: tuple[int, int]) -> int:
    """The number of nodes that a tree of these sides has beside a chain."""
    width, depth = sides
    return sum(width**level - 1 for level in range(1, depth + 1))


@cache
def window_tree(width: int, depth: int, most: int) -> Template:
    """The tree over `most` positions: full over the first `depth`, then a chain after the first tokens."""
    return Template.of([*product(range(width), repeat=min(depth, most)), (0,) * most])


def with_siblings(
    chain: Draft, sides: tuple[int, int], counts: np.ndarray, sampled: Tensor, uniforms: Uniforms
) -> Draft:
    """The tree whose first tokens are `chain`'s, of which each row has `counts` [B] after node 0.

    `sampled` [B, T] bool are the nodes of the chain that get siblings, drawn from q without replacement.
    """
    width, depth = sides
    most, device = chain.width - 1, chain.tokens.device
    tree, depth = window_tree(*sides, most).to(device), min(depth, most)
    assert chain.q is not None, "its tokens were sampled"
    q, first = chain.q[:, 1 : depth + 1], chain.tokens[:, 1 : depth + 1, None]
    positions = chain.start[:, None] + 1 + torch.arange(depth, device=device)
    rank = wide(q).log() + gumbel(uniforms.noise(positions, "siblings", q.shape[-1]))
    some = min(width, q.shape[-1]) - 1
    others = rank.scatter(2, first, -torch.inf).topk(some).indices
    real = (q.gather(2, others) > 0) & (others != first) & sampled[:, 1 : depth + 1, None]
    missing = (0, width - 1 - some)
    tokens = pad(torch.cat((first, pad(others, missing)), 2), (0, 0, 0, most - depth))
    tokens[:, depth:, 0] = chain.tokens[:, depth + 1 :]
    tested = pad(pad(real, missing), (1, 0, 0, most - depth), value=False)
    tested[:, :, 0] = True
    level, rank_of = (tree.depths - 1).clamp(min=0), tree.ranks
    nodes = torch.cat((chain.tokens[:, :1], tokens[:, level, rank_of][:, 1:]), 1)
    parents = tree.parents.expand(len(nodes), -1)
    own = conditional_distributions(nodes, parents, chain.q[:, tree.depths], replacement=False)
    point, passes = (
        None if each is None else each[:, tree.depths] & (rank_of == 0)
        for each in (chain.is_point_mass, chain.preaccepted)
    )
    return Draft(
        nodes,
        np.searchsorted(window_tree(*sides, most).depths.numpy(), counts, side="right"),
        chain.base,
        tree.parents,
        tree.depths,
        most,
        verify=tested[:, level, rank_of],
        preaccepted=passes,
        q=own,
        is_point_mass=point,
    )


def window_nodes(sides: tuple[int, int], outcome: RoundResult) -> tuple[Tensor, Tensor]:
    """Nodes of the window's positions, the last known one included: [B, K] whose distributions count, [K] of `chain`.

    Distributions of the tree are those after the accepted tokens, then after first tokens.
    """
    width, depth = sides
    path, count = outcome.verdict.path, outcome.verdict.count
    tree = window_tree(width, depth, outcome.draft.deepest)
    first = upload(torch.tensor([0, *(level.start for level in tree.levels)]), path.device)
    columns = [path[:, 0]]
    for level in range(1, len(first)):
        below = first[level] + (columns[-1] - first[level - 1]) * width  # the first child
        reached = path[:, level] if level < path.shape[1] else below
        chosen = torch.where(level <= count, reached, below)
        columns.append(chosen if level <= depth else first[level].expand_as(chosen))
    return torch.stack(columns, 1), first


def at_nodes(values: Tensor, nodes: Tensor) -> Tensor:
    """[B, K, V]: `values` [B, T, V] of `nodes` [B, K]."""
    return values.gather(1, nodes[..., None].expand(-1, -1, values.shape[-1]))


_TEXT, _IMAGE = 16, 32  # the default window


@dataclass(slots=True)
class WindowState:
    """The latest distributions at the K positions after each row's text, and the previous round's tokens there."""

    distribution: Tensor  # [B, K, V] float32
    known: np.ndarray  # [B] on the host: the number of positions that have a distribution
    old: Tensor  # [B, K] int64, at all positions with a distribution but the last
    q: Tensor  # [B, K, V] float32: the distributions that `old` was sampled from
    point: Tensor  # [B, K] bool: `old` is a point mass
    counts: np.ndarray  # [B] on the host: positions of the latest draft


@register("sjd", exact="greedy", checked="golden/llamagen joint")
class Sjd(Drafter):
    window: Annotated[
        int | None, "tokens fed in a forward, the last known one included; none: 32 of an image, 16 of text"
    ] = None
    refresh: Annotated[
        Literal["coupled", "independent", "gumbel"],
        "redraw samples coupled with the old ones, independently, or with fixed noise",
    ] = "coupled"
    init: Annotated[
        Init | None,
        "fresh guesses: any token, any of the prompt's, the one before, what followed before, or the image token "
        "to the left or above; none: left in an image, random in text",
    ] = None
    uniform: Annotated[bool, "with init=random: fresh guesses are tested as samples of the uniform distribution"] = (
        False
    )
    reuse: Annotated[float | None, "a guess stays if its new probability is above this; none: off"] = None
    tree: Annotated[str | None, "tokens per position x positions, such as 3x3; none: one token each"] = None

    def __post_init__(self) -> None:
        if self.window is not None:
            refuse_narrow("sjd", self.window)
        if self.uniform and self.init not in (None, "random"):
            raise SpecError(f"sjd: uniform=true needs init=random, got init={self.init}", hint="leave uniform out")
        self.require("reuse", least=0, most=1)
        tree_sides("sjd", self.tree)
        if self.reuse is not None and self.refresh == "gumbel":
            raise SpecError(
                "sjd: reuse does not work with refresh=gumbel, whose noise is fixed", hint="write refresh=coupled"
            )

    def width(self, model: LanguageModel) -> int:
        refuse_without_image("sjd", self.init, model)
        nodes = self.positions(model) + siblings(self.sides)
        check_nodes("sjd", nodes)
        return nodes

    def positions(self, model: LanguageModel) -> int:
        """The window: positions of a forward, the last known one included."""
        if self.window is not None:
            return self.window
        return _TEXT if model.imaging is None else _IMAGE

    @property
    def sides(self) -> tuple[int, int]:
        """The tree's tokens per position, and the number of positions that have them."""
        return tree_sides("sjd", self.tree)

    def opening(self, model: LanguageModel) -> Init:
        """The rule for fresh guesses."""
        if self.init is not None:
            return self.init
        return "random" if self.uniform or model.imaging is None else "left"

    def start(self, context: DecodeContext) -> WindowState:
        batch, device = len(context.text), context.text.device
        token = torch.zeros(batch, 0, dtype=torch.int64, device=device)
        distribution = torch.zeros(batch, 0, context.model.vocab_size, device=device)
        none = np.zeros_like(context.text.length)
        return WindowState(distribution, none, token, distribution, token.bool(), none)

    def propose(self, context: DecodeContext, remaining: np.ndarray, uniforms: Uniforms, state: WindowState) -> Draft:
        state.counts = counts = np.minimum(remaining, self.positions(context.model) - 1)
        most = int(counts.max(initial=0))
        known = np.minimum(state.known, most)
        redrawn, distribution, stays = (each[:, :most] for each in self._redraw(context, uniforms, state))
        missing = most - redrawn.shape[1]
        tokens = fresh(self.opening(context.model), pad(redrawn, (0, missing)), known, context, uniforms)
        single = self.sides[0] == 1 or not most  # no row gets a tree, whatever the others know
        if single and not known.any() and not self.uniform:
            return Draft.chain(context.text, tokens, counts)
        new = torch.arange(-1, most, device=tokens.device) >= upload(known, tokens.device)[:, None]
        q = pad(distribution, (0, 0, 1, missing))
        point: Tensor | None = new | pad(stays, (1, missing))
        if self.uniform:
            q, point = q.masked_fill(new[..., None], 1 / q.shape[-1]), None
        draft = Draft.chain(context.text, tokens, counts, q=q, is_point_mass=point)
        if single:
            return draft
        return with_siblings(draft, self.sides, counts, ~new, uniforms)

    def _redraw(self, context: DecodeContext, uniforms: Uniforms, state: WindowState) -> tuple[Tensor, Tensor, Tensor]:
        """A token [B, K] per position with a distribution, the distribution [B, K, V], and point masses [B, K] bool."""
        p, point = state.distribution, torch.zeros_like(state.point)
        offset = torch.arange(p.shape[1], device=p.device)
        positions = offset + upload(context.text.length, p.device)[:, None]
        if self.refresh == "gumbel":  # noise of a position, used for nothing else
            return gumbel_sample(p, uniforms.noise(positions, "refresh", p.shape[-1], fixed=True)), p, point
        # Fresh uniforms each round: reusing them would bias a sample that is coupled with the one before.
        u, keep = uniforms.noise(positions, "refresh", 2).unbind(-1)
        if self.refresh == "independent" and self.reuse is None:
            return sample(p, u), p, point
        has_old = offset < upload(state.known - 1, p.device)[:, None]
        each = (p, state.old, state.q, state.point, has_old)
        new, old, q, mass, has = (values.flatten(0, 1) for values in each)
        if self.reuse is None:
            return coupled_sample(new, old, q, mass, has, keep.flatten(), u.flatten()).view_as(state.old), p, point
        stays, q, label = reuse(new, old, q, mass, has, self.reuse)
        has = has & (self.refresh == "coupled")
        redrawn = coupled_sample(new, old, q, mass, has, keep.flatten(), u.flatten())
        tokens = torch.where(stays, old, redrawn)
        return tokens.view_as(state.old), label.view_as(p), (stays & mass).view_as(state.point)

    def observe(self, outcome: RoundResult, context: DecodeContext, state: WindowState) -> None:
        draft, gained, probs = outcome.draft, outcome.gained, outcome.distributions.probs
        tokens, q, point = draft.tokens, draft.q, draft.is_point_mass
        if draft.parents is not None:
            at, first = window_nodes(self.sides, outcome)
            tokens, probs = tokens[:, first], at_nodes(probs, at)
            q = None if q is None else q[:, first]
            point = None if point is None else point[:, first]
        state.known = np.maximum(state.counts + 1 - gained, 0)
        most = int(state.known.max())
        state.distribution = slice_from(probs, gained, most)
        state.old = slice_from(tokens, gained + 1, most)
        state.q = state.distribution if q is None else slice_from(q, gained + 1, most)
        if point is not None:
            state.point = slice_from(point, gained + 1, most)
        else:
            state.point = torch.full_like(state.old, q is None, dtype=torch.bool)
