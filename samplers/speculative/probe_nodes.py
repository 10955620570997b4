"""Places a drafter's probe nodes after the nodes of a draft.

`QueryVectors` keeps the target's attention queries, by which a stage may choose the slots to read.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from pardec.models.plan import Hidden

from ..host_transfer import download, upload
from .contracts import Draft, ProbeLayout, ProbeNodes, Verdict

Carry = tuple[tuple[int, ...], ...]  # per depth: the number of probe steps after each of its nodes


def after_every(draft: Draft, chains: ProbeLayout, remaining: np.ndarray, carry: Carry | None = None) -> ProbeNodes:
    """Adds probe `chains` after every node of a draft, without inputs; leaves out probes that cannot be used.

    Probe l of a node at depth d predicts the token d + step[l] + 2 positions after node 0, which is used only if the
    row's `remaining` [B] allows a draft that deep. With `carry`, node i of depth d has only the first carry[d][i]
    steps; the last entry holds for all later nodes and depths.
    """
    device, sizes = draft.tokens.device, draft.sizes
    size, node = upload(sizes, device)[:, None, None], torch.arange(draft.width, device=device)
    length = len(chains.step)
    every = bool((remaining > draft.deepest + chains.steps).all())
    if draft.parents is not None and device.type != "cpu":  # reading their number would synchronize
        every = True
    if carry is None and every:
        order = torch.arange(1, length + 1, device=device)[:, None]
        index = torch.where(node < size, size * order + node, -1)
        return ProbeNodes(chains, index, np.repeat(sizes[:, None], length, 1))
    most = upload(remaining - 1, device)[:, None] - draft.depth
    if carry is not None:
        widest = max(map(len, carry))
        table = upload(torch.tensor([(*level, *level[-1:] * (widest - len(level))) for level in carry]), device)
        level = draft.depth.clamp(max=len(carry) - 1)
        rank = (draft.depth[:, :, None] == draft.depth[:, None]).tril(-1).sum(2)  # index of each node within its depth
        most = most.minimum(table[level, rank.clamp(max=widest - 1)])
    step = upload(torch.tensor(chains.step), device)[:, None]
    has = (node < size) & (step < most[:, None])
    number = has.flatten(1).long().cumsum(1).view_as(has) - 1
    if draft.parents is not None or device.type == "cpu":
        return ProbeNodes(chains, torch.where(has, size + number, -1), download(has.sum(2)))
    depth = np.arange(draft.width)  # in a chain, the host knows the depths
    limit = remaining[:, None] - 1 - depth
    if carry is not None:
        limit = np.minimum(limit, [carry[min(at, len(carry) - 1)][0] for at in depth.tolist()])
    real = (depth < sizes[:, None, None]) & (np.array(chains.step)[:, None] < limit[:, None])
    return ProbeNodes(chains, torch.where(has, size + number, -1), real.sum(2))


def after_last(draft: Draft, chains: ProbeLayout, remaining: np.ndarray) -> ProbeNodes:
    """`after_every`, for the last node of each row's chain alone."""
    device, step = draft.tokens.device, np.array(chains.step)[:, None]
    last = np.arange(draft.width) == draft.sizes[:, None, None] - 1  # [B, 1, T]
    has = last & (step < (remaining - draft.sizes)[:, None, None])
    number = draft.sizes[:, None, None] + np.arange(len(chains.step))[:, None]
    return ProbeNodes(chains, upload(np.where(has, number, -1), device), has.sum(2))


def extended(draft: Draft) -> Draft:
    """The draft with its probe nodes as nodes of token -1, under the same numbers."""
    queries = draft.queries
    assert queries is not None
    sizes = draft.sizes + queries.total
    width, device = int(sizes.max()), draft.tokens.device
    step, above = (upload(torch.tensor(each), device)[:, None] for each in (queries.chains.step, queries.chains.above))
    step, above = step[: queries.index.shape[1]], above[: queries.index.shape[1]]
    upper = queries.index[:, above[:, 0].clamp(min=0)]
    parents = torch.where(above < 0, torch.arange(draft.width, device=device), upper)
    depths = draft.depth[:, None] + step + 1
    at = torch.where(queries.index >= 0, queries.index, width).flatten(1)

    def placed(nodes: Tensor, values: Tensor | None) -> Tensor:
        """[B, width]: the nodes' values [B, T], and the probe nodes' [B, L, T] or -1."""
        whole = pad(nodes, (0, width + 1 - nodes.shape[1]))
        filling = at.new_full((), -1).expand_as(at) if values is None else values.expand_as(queries.index).flatten(1)
        return whole.scatter(1, at, filling)[:, :-1]

    return Draft(
        placed(draft.tokens, None),
        sizes,
        draft.base,
        placed(draft.parent, parents),
        placed(draft.depth, depths),
    )


def inputs_of(draft: Draft, width: int) -> Tensor | None:
    """[B, width, E]: the input vectors of the probe nodes at their places in the extended draft, 0 at other nodes."""
    queries = draft.queries
    if queries is None or queries.inputs is None:
        return None
    vectors = pad(queries.inputs, (0, 0, 1, 0))  # row 0: for nodes
    which = torch.arange(1, len(vectors), device=vectors.device)[:, None].expand_as(queries.index)
    at = torch.where(queries.index >= 0, queries.index, width).flatten(1)
    which = which.new_zeros(len(at), width + 1).scatter(1, at, which.flatten(1))[:, :-1]
    return vectors[which]


class QueryVectors:
    """Attention query vectors kept from the forwards of a round; keeps none if `count` is 0.

    Attributes:
        layers: [B, n, H, D] per layer: n = `count` for the last tokens of the prompt, later n = 1.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.layers: tuple[Tensor, ...] = ()
        self._parts: list[tuple[np.ndarray, Hidden]] = []
        self._first = True

    def add(self, rows: np.ndarray, hidden: Hidden) -> None:
        """Adds the forward of these live rows; a round may have several."""
        if self.count:
            self._parts.append((rows, hidden))

    def pick(self, verdict: Verdict) -> None:
        """Keeps the vectors at the end of each row's accepted path; after the prompt's forward, all vectors."""
        if not self.count or not self._parts:
            return
        node = verdict.path.gather(1, verdict.count[:, None])[:, 0]
        first, self._first = self._first, False
        parts = []
        for rows, hidden in self._parts:
            where = upload(rows, node.device)
            each = hidden.queries
            if not first:
                each = tuple(q[torch.arange(len(rows), device=q.device), node[where].to(q.device), None] for q in each)
            parts.append(each)
        order = np.argsort(np.concatenate([rows for rows, _ in self._parts]))
        self.layers = tuple(torch.cat(layer)[upload(order, layer[0].device)] for layer in zip(*parts, strict=True))
        self._parts.clear()
