"""Drafts the coming steps from the last forward and verifies them all in the next one, without loss.

Free Draft-and-Verification: Toward Lossless Parallel Decoding for Diffusion Large Language Models,
https://arxiv.org/abs/2510.00294

    hypothesis 0 is the row; hypothesis i is a state that the row may reach, d(i) steps later
    one forward computes all; step(i) = hypothesis i after the sampler's commits by its own prediction
    from i = 0, move to the hypothesis j = step(i) with d(j) = d(i) + 1 as long as there is one; the last i survives
    and becomes step(i)

Which states are drafted:

    nested   (default) hypothesis i commits to hypothesis i - 1 what the sampler would by the last forward
    tree     `width` > 1: there, the surest position takes one of its `width` likeliest tokens; of the tree of these
             the `drafts` nodes with the fewest steps and lowest ranks (SSD: Self Speculative Decoding for Diffusion
             Large Language Models, https://arxiv.org/abs/2510.04147)
    graph    `graph=0-1-0.1`: the states it names, by ranks of the last forward (`draft_sets.py`); one that commits
             two positions one after the other is reached over either (Spiffy: Multiplying Diffusion LLM Acceleration
             via Lossless Speculative Decoding, https://arxiv.org/abs/2509.18085). `scripts/draft_graph.py` makes one

Every hypothesis on this way is a state that the sampler without it passes through, and draws are keyed by step and
position: the tokens are the same, greedy or sampled, with any cache whose K/V follow from the tokens alone.
`subset=true` also moves to a later hypothesis whose tokens are among those that step(i) commits, as the paper does with
a threshold: this skips states of the sampler, and is not exact. With a threshold that is
PSD, as far as its rule is known (`preset:psd`; PSD: Pushing the Pareto Frontier of Diffusion LLMs via Parallel
Speculative Decoding, https://arxiv.org/abs/2605.15609): drafts of several depths from one forward's confidences, the
deepest kept that agrees with the updated predictions.
Deviates from the published code, which drafts for one row; `eager` drafts, beyond the block, are not supported. SSD,
Spiffy and PSD publish no code. Open there and decided here: SSD's tree branches over tokens, cheapest nodes first;
Spiffy's nodes may commit several positions per step, and are not pruned while decoding; PSD's drafts agree where the
step commits their tokens, not where it predicts them alone.
Exact: greedy: the output of the sampler without it, greedy or sampled; not with `subset=true`.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor

from pardec.models.errors import SpecError

from ...host_transfer import upload
from ...ops.rank import best, descending
from ...registry import register
from ...traits import Trait
from ..contracts import Branch, Choice, Hypotheses, Proposal
from .draft_sets import graph_of, read_graph, tree_tokens


def of_ranks(commits: np.ndarray, choice: Choice, proposal: Proposal) -> Choice:
    """The positions and tokens of `commits` [N, G, 2] by rank in the proposal; none if a position is missing."""
    rank = descending(proposal.score)[1]
    which, tokens = torch.zeros_like(proposal.eligible), choice.tokens
    complete = torch.ones_like(which[:, :1])
    for position, token in commits.transpose(1, 2, 0):
        number = upload(position, rank.device)[:, None]
        at = (rank == number) & proposal.eligible
        complete &= at.any(1, keepdim=True) | (number < 0)
        which |= at
        tokens = other_tokens(tokens, at, np.maximum(token, 0), proposal)
    return Choice(which & complete, tokens)


def other_tokens(tokens: Tensor, at: Tensor, rank: np.ndarray, proposal: Proposal) -> Tensor:
    """`tokens` [N, W]; where `rank` [N] is above 0, the position marked by `at` [N, W] gets the token of that rank."""
    rows = np.flatnonzero(rank > 0)
    if not len(rows):
        return tokens
    row = upload(rows, tokens.device)
    marked = at[row]
    logits = proposal.evidence.distribution.logits_at(row * tokens.shape[1] + marked.long().argmax(1))
    order = logits.topk(min(int(rank.max()) + 1, logits.shape[1]), dim=1).indices
    index = upload(np.minimum(rank[rows], order.shape[1] - 1), order.device)[:, None]
    return tokens.index_copy(0, row, torch.where(marked, order.gather(1, index), tokens[row]))


@register("freedave", exact="greedy", checked="reference:samplers.masked.test_freedave.naive_graph joint")
class FreeDave(Branch):
    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"drafts": (4, 2, 8)}

    drafts: Annotated[int, "most hypotheses per row, in addition to the row itself"] = 4
    subset: Annotated[bool, "also accept drafts that are a subset of a step's commits; no longer exact"] = False
    width: Annotated[int, "tokens tried at the most confident position, as a tree; 1: only the likeliest"] = 1
    graph: Annotated[str | None, "states to draft, as 0-1-0.1 or a file with them; none: set by drafts and width"] = (
        None
    )

    def __post_init__(self) -> None:
        self.require("drafts", "width", least=1)
        if self.graph is None:
            return
        if self.width > 1:
            raise SpecError(
                "freedave: width and graph cannot be combined: graph lists every state", hint="leave one out"
            )
        object.__setattr__(self, "graph", read_graph(self.graph))  # the file may change later
        graph_of(self.graph)

    @property
    def provides(self) -> frozenset[Trait]:
        return super().provides if self.subset else super().provides | {Trait.KEEPS_TOKENS}

    @property
    def exact(self) -> str:
        return "relaxed" if self.subset else "greedy"

    @property
    def depths(self) -> tuple[int, ...]:
        if self.graph is not None:
            return graph_of(self.graph).depths
        return (0, *map(len, tree_tokens(self.drafts, self.width)))

    @property
    def needs(self) -> tuple[int, ...]:
        return self.depths if self.graph is None else graph_of(self.graph).needs

    def draft(self, step: int, number: np.ndarray, choice: Choice, proposal: Proposal) -> Choice:
        if self.graph is not None:
            return of_ranks(graph_of(self.graph).commits[step - 1, number], choice, proposal)
        if self.width == 1:
            return choice
        # The row itself and hypotheses shallower than `step` have no token of this step, and are not written.
        token = np.array([0, *(node[step - 1] if len(node) >= step else 0 for node in self._tree)])[number]
        surest = best(proposal.score.masked_fill(~(choice.which & proposal.eligible), -torch.inf))
        return Choice(choice.which, other_tokens(choice.tokens, surest, token, proposal))

    @property
    def _tree(self) -> tuple[tuple[int, ...], ...]:
        return tree_tokens(self.drafts, self.width)

    def survivors(self, hypotheses: Hypotheses) -> Tensor:
        canvas, window = hypotheses.canvas, hypotheses.canvas.window
        chosen = hypotheses.chosen & canvas.eligible
        # [N, L + 1] the rows before and after the step, the mask id where they are open.
        now = torch.where(canvas.open, canvas.mask_id, canvas.tokens)
        step = now.scatter(1, window, torch.where(chosen, hypotheses.tokens, now.gather(1, window)))
        table = hypotheses.table
        real, index = table >= 0, table.clamp(min=0)
        depth = upload(np.array(self.depths)[hypotheses.number], table.device)[index]
        ended = upload(hypotheses.ended, table.device)[index]
        follows = self._follows(now[index], step[index], depth, canvas.mask_id)
        follows = follows & real[:, None] & ~ended[:, :, None]
        row = torch.arange(len(table), device=table.device)
        current = torch.zeros_like(row)
        for other in range(1, table.shape[1]):  # by depth
            current = current.masked_fill(follows[row, current, other], other)
        return index[row, current]

    def _follows(self, now: Tensor, step: Tensor, depth: Tensor, mask_id: int) -> Tensor:
        """[n, M, M] bool: whether the row moves from one hypothesis of `now` [n, M, L + 1] to another, at `depth`."""
        same = step[:, :, None] == now[:, None]
        if not self.subset:
            return same.all(3) & (depth[:, None] == depth[:, :, None] + 1)
        known = now != mask_id
        return (same | ~known[:, None]).all(3) & (known[:, None] | ~known[:, :, None]).all(3)
