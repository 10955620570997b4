"""A drafting model's tree and trees of known tokens as one draft, in which equal paths are one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from ..contracts import DecodeContext, Draft, DraftModel, Shape, Uniforms
from ..over_ids import LogitsOverIds
from ._tries import Node


class FirstDistribution(Shape):
    """A shape that remembers the drafting model's distribution behind the text's last token; for one request."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.first: LogitsOverIds | None = None  # [B, 1, V or N]; None: nothing was drafted in this round

    @property
    def unprocessed(self) -> bool:
        return self.shape.unprocessed

    @property
    def fixed_depth(self) -> int | None:
        return self.shape.fixed_depth

    def width(self, k: int) -> int:
        return self.shape.width(k)

    def grow(
        self, draft_model: DraftModel, context: DecodeContext, budget: np.ndarray, uniforms: Uniforms, state: None
    ) -> Draft:
        return self.shape.grow(_Watched(draft_model, self), context, budget, uniforms, context.state(self.shape))

    def probs(self, at: int, tokens: list[int]) -> list[float]:
        """The probability of each of these tokens behind node 0 of the row at index `at`."""
        assert self.first is not None, "a model has drafted"
        probs, ids = self.first.logits[at, 0].softmax(-1), self.first.ids
        wanted = torch.tensor(tokens, dtype=torch.int64, device=probs.device)
        if ids is None:
            inside: list[float] = probs[wanted].tolist()
            return inside
        same = wanted[:, None] == ids
        inside = torch.where(same, probs, 0).sum(1).tolist()
        return inside


class _Watched(DraftModel):
    """A drafting model whose first logits are recorded."""

    def __init__(self, model: DraftModel, record: FirstDistribution) -> None:
        self.model, self.record = model, record

    def forward(self, draft: Draft, nodes: Tensor) -> Tensor:
        return self._recorded(LogitsOverIds(self.model.forward(draft, nodes))).logits

    def forward_over_ids(self, draft: Draft, nodes: Tensor) -> LogitsOverIds:
        return self._recorded(self.model.forward_over_ids(draft, nodes))

    def prune(self, nodes: Tensor) -> None:
        self.model.prune(nodes)

    def acceptance(self) -> Tensor | None:
        return self.model.acceptance()

    def _recorded(self, over: LogitsOverIds) -> LogitsOverIds:
        self.record.first = self.record.first or over
        return over


def fused(draft: Draft, rows: Sequence[Sequence[Node]], most: int) -> Draft:
    """`draft` and, behind its own nodes, those of each row's tree that it has not, up to `most` nodes behind node 0.

    A path of a tree is followed in the draft as far as both agree; what goes on from there are point masses, behind the
    siblings that the model has drafted. So these keep the distributions that they were sampled from. A draft that has
    more nodes already stays as it is.
    """
    tokens, parents, depths = (each.cpu().numpy() for each in (draft.tokens, draft.parent, draft.depth))
    tested = draft.tested.cpu().numpy()
    more: list[list[Node]] = []
    for at, nodes in enumerate(rows):
        size = int(draft.sizes[at])
        index = {0: 0}  # of each node of the tree in the draft
        child: dict[tuple[int, int], int] = {}
        for node in np.flatnonzero(tested[at]).tolist():
            child.setdefault((int(parents[at, node]), int(tokens[at, node])), node)
        own: list[Node] = []
        for number, (token, parent, depth) in enumerate(nodes, 1):
            if parent not in index:
                continue
            above = index[parent]
            if (above, token) not in child:
                if size - 1 + len(own) >= most:
                    continue
                child[above, token] = size + len(own)
                own.append((token, above, depth))
            index[number] = child[above, token]
        more.append(own)
    if not any(more):
        return draft
    sizes = draft.sizes + np.array([len(own) for own in more])
    width = max(int(sizes.max()), draft.width)
    table = np.zeros((3, len(rows), width), dtype=np.int64)
    table[:, :, : draft.width] = tokens, parents, depths
    added = np.zeros((len(rows), width), dtype=bool)
    for at, own in enumerate(more):
        if own:
            span = slice(int(draft.sizes[at]), int(sizes[at]))
            table[:, at, span], added[at, span] = np.array(own).T, True
    table[1:, np.arange(width) >= sizes[:, None]] = 0
    return _extended(draft, sizes, torch.from_numpy(table), torch.from_numpy(added))


def _extended(draft: Draft, sizes: np.ndarray, table: Tensor, added: Tensor) -> Draft:
    """`draft` with the tokens, parents and depths of `table` [3, B, T], the `added` nodes [B, T] being point masses."""
    device = draft.tokens.device
    table, added = table.to(device), added.to(device)
    extra = table.shape[2] - draft.width

    def wide(value: Tensor) -> Tensor:
        return pad(value.expand(len(sizes), -1), (0, extra))

    point = None
    if draft.q is not None:
        point = added if draft.point is None else added | wide(draft.point)
    return replace(
        draft,
        tokens=table[0],
        sizes=sizes,
        parents=table[1],
        depths=table[2],
        levels=int(table[2].max()),
        verify=None if draft.verify is None else added | wide(draft.verify),
        q=None if draft.q is None else pad(draft.q, (0, 0, 0, extra)),
        point=point,
        uncontrolled=added.any(1).cpu().numpy(),
    )
