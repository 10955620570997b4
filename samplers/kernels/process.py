"""From raw logits to the law that tokens are drawn from: processors, allowed tokens, temperature, top-k, top-p."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from pardec.samplers.contracts import Allowed, Request
from pardec.samplers.kernels.law import filtered
from pardec.samplers.sequences import Sequences
from pardec.samplers.verifying import Draft


class Processing:
    """The processing of one request; the same for the target and for a drafter, so that p and q can be compared.

    Logits processors of transformers see, for each node, the row's committed tokens and the node's own path.
    """

    def __init__(self, request: Request, text: Sequences) -> None:
        self.request, self.text = request, text
        self.allowed: Allowed | None = request.allowed

    def __call__(self, raw: Tensor, draft: Draft, nodes: Tensor | None = None) -> Tensor:
        """Processed logits.

        Args:
            raw: [B, K, V] logits behind `nodes`.
            draft: the nodes so far.
            nodes: [B, K] int64, which of them; None is all.
        """
        request, logits = self.request, raw
        if request.processors:
            logits = self._processed(logits, draft, nodes)
        if self.allowed is not None:
            logits = self._allowed(logits, draft, nodes)
        return filtered(
            logits, temperature=request.temperature, top_k=request.top_k, top_p=request.top_p, order="top_k"
        )

    def _processed(self, raw: Tensor, draft: Draft, nodes: Tensor | None) -> Tensor:
        """Node by node, those with histories of one length together: processors know no padding."""
        out = raw.clone()
        histories: dict[int, list[tuple[int, int, list[int]]]] = {}
        tokens, parents, sizes = draft.tokens.tolist(), draft.parent.tolist(), draft.sizes
        wanted = [range(draft.width)] * len(tokens) if nodes is None else nodes.tolist()
        for row in range(len(tokens)):
            for place, node in enumerate(wanted[row]):
                if not 0 <= node < sizes[row]:
                    continue
                path, at = [], node
                while at > 0:
                    path.append(tokens[row][at])
                    at = parents[row][at]
                history = [*self.text.row(row).tolist(), *reversed(path)]
                histories.setdefault(len(history), []).append((row, place, history))
        for group in histories.values():
            rows, places, ids = zip(*group, strict=True)
            where = torch.tensor(rows, device=raw.device), torch.tensor(places, device=raw.device)
            out[where] = self._run(torch.tensor(ids, device=raw.device), raw[where])
        return out

    def _run(self, ids: Tensor, scores: Tensor) -> Tensor:
        processors: Any
        for processors in self.request.processors:
            scores = processors(ids, scores)
        return scores

    def _allowed(self, logits: Tensor, draft: Draft, nodes: Tensor | None) -> Tensor:
        """Nothing but the allowed tokens at each position behind a node."""
        assert self.allowed is not None
        depth = draft.depth if nodes is None else draft.depth.gather(1, nodes)
        position = depth.cpu().numpy() + self.text.length[:, None]
        sets = np.zeros_like(position)
        for at, row in enumerate(self.text.rows):
            known = self.allowed.at[row].cpu().numpy()
            inside = position[at] < len(known)
            sets[at, inside] = known[position[at, inside]]
        which = self.allowed.sets.to(logits.device)[torch.from_numpy(sets).to(logits.device)]
        return logits.masked_fill(~which, -torch.inf)
