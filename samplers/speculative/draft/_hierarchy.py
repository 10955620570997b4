"""A draft that is itself the result of a verify loop: its text as it grows, its random numbers, its middle model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pardec.models.errors import PardecError
from pardec.models.plan import Plan, Visible

from ...ops.inverse_cdf import sample
from ..contracts import Draft, InverseCDFUniforms, Uniforms
from ..draft_model import DraftModelState
from ..reading_state import ReadingState
from ..sequences import Sequences


class DraftedText:
    """The text with what the present round has drafted: an inner verify loop commits here.

    Attributes:
        text: what the inner loop sees as the rows' committed tokens.
        probs: of each inner commit [B, D, V], the distributions that its tokens are samples of.
    """

    def __init__(self, text: Sequences, distribution: Callable[..., Tensor]) -> None:
        self.outer, self._distribution = text, distribution
        self.text = Sequences([torch.zeros(0, dtype=torch.int64)], [0], pad_id=text.pad_id, device=text.device)
        self.begin()

    def begin(self) -> None:
        """Nothing is drafted yet."""
        outer, text = self.outer, self.text
        for name in ("rows", "prompt", "length", "limit", "nfe", "host", "commit_step", "commit_score"):
            setattr(text, name, getattr(outer, name).copy())
        text.tokens = torch.from_numpy(text.host) if text.device.type == "cpu" else outer.tokens.clone()
        self._probs: list[tuple[np.ndarray, np.ndarray, Tensor]] = []

    @property
    def count(self) -> np.ndarray:
        """[B] tokens drafted."""
        result: np.ndarray = self.text.length - self.outer.length
        return result

    def commit(self, tokens: Tensor, counts: np.ndarray, probs: Tensor | None) -> None:
        """Appends the first counts[b] of `tokens` [B, D], samples of `probs` [B, D, V]; None: point masses."""
        if probs is not None:
            self._probs.append((self.count, counts, probs))
        on_host = tokens.cpu().numpy()
        self.text.commit(on_host, counts, np.zeros(on_host.shape, dtype=np.float32))

    def distribution(self, raw: Tensor, draft: Draft, nodes: Tensor) -> Tensor:
        """Processed logits behind `nodes` [B, K] of an inner draft, which is a chain: see `DecodeContext`."""
        count = torch.from_numpy(self.count).to(nodes.device)[:, None]
        chain = self._chain(int(self.count.max()) + draft.width)
        order = torch.arange(chain.shape[1], device=nodes.device) - count
        inner = draft.tokens.gather(1, order.clamp(0, draft.width - 1))
        whole = Draft(torch.where(order > 0, inner, chain), self.count + draft.sizes, self.outer.length - 1)
        return self._distribution(raw, whole, torch.where(nodes < 0, -1, nodes + count))

    def draft(self) -> Draft:
        """All that was drafted, as one chain."""
        count = self.count
        width = int(count.max()) + 1
        if width == 1:
            return Draft.none(self.outer)
        tokens = self._chain(width)
        if not self._probs:
            return Draft(tokens, count + 1, self.outer.length - 1)
        vocab = self._probs[0][2].shape[-1]
        q = torch.zeros(len(count), width, vocab, device=tokens.device)
        for start, counts, probs in self._probs:
            row, column = (torch.from_numpy(each) for each in np.nonzero(np.arange(probs.shape[1]) < counts[:, None]))
            q[row, torch.from_numpy(start)[row] + 1 + column] = probs[row, column].float()
        return Draft(tokens, count + 1, self.outer.length - 1, q=q)

    def _chain(self, width: int) -> Tensor:
        """[B, width] tokens from each row's last committed one on."""
        order = torch.from_numpy(self.outer.length[:, None] - 1 + np.arange(width)).to(self.text.device)
        return self.text.tokens.gather(1, order.clamp(max=self.text.tokens.shape[1] - 1))


@dataclass(frozen=True)
class InnerUniforms:
    """The random numbers of one round of an inner loop: those of the outer round for purposes of their own."""

    outer: InverseCDFUniforms
    number: int  # of the inner round

    def accept(self, node: int, tested: Tensor, token: Tensor) -> Tensor:
        return self.draw_uniform("accept", node)

    def accepts(self, width: int) -> Tensor:
        return torch.stack([self.draw_uniform("accept", node) for node in range(width)], 1)

    def draw(self, weights: Tensor, purpose: str, node: int = 0) -> Tensor:
        return sample(weights, self.draw_uniform(purpose, node))

    def draw_uniform(self, purpose: str, node: int = 0) -> Tensor:
        return self.outer.draw_uniform(f"inner {self.number} {purpose}", node)

    def noise(self, positions: Tensor, purpose: str, width: int, *, fixed: bool = False) -> Tensor:
        outer: Uniforms = self.outer  # type: ignore[assignment]  # a round's random numbers are both
        return outer.noise(positions, f"inner {self.number} {purpose}", width, fixed=fixed)


class MiddleModel(ReadingState):
    """The target that reads a part, as what verifies an inner draft."""

    def verify(self, draft: Draft) -> Tensor:
        """Raw logits [B, T, V] behind the nodes of a chain."""
        base, device = draft.base, draft.tokens.device
        same = bool((base == base[0]).all() and (draft.sizes == draft.width).all())
        start, stop = int(base[0]), int(base[0]) + draft.width
        order = torch.arange(draft.width, device=device)
        sizes = torch.from_numpy(draft.sizes).to(device)
        slots = torch.where(order < sizes[:, None], draft.start[:, None] + order, -1)
        plan = Plan(
            tokens=draft.ids,
            positions=slots,
            slots=slots,
            visible=Visible.causal(),
            lengths=draft.start + sizes,
            want=order.expand_as(slots),
            uniform=stop if same else None,
            span=(start, stop) if same else None,
        )
        raw = self._run(plan).logits()
        self.highest = self.highest + torch.where(slots >= 0, raw.amax(-1), 0).sum()
        return raw

    def begin(self) -> None:
        """Nothing has run in this round."""
        self.calls = 0
        self.runs.clear()
        self.highest = torch.zeros((), device=self.context.text.device)


@dataclass
class Hierarchy:
    """The three levels of one request; rows leave and join the two that have caches."""

    drafted: DraftedText
    middle: MiddleModel
    small: DraftModelState

    def failure(self) -> PardecError:
        """The error for logits of this round that are not finite."""
        return (self.small if bool(self.middle.highest.isfinite()) else self.middle).failure()

    def keep(self, rows: np.ndarray) -> None:
        """Keeps these live rows."""
        for part in (self.middle, self.small):
            part.keep(rows)

    def put(self, where: np.ndarray, other: Hierarchy) -> None:
        """The rows of `other` in place of those at `where`."""
        self.middle.put(where, other.middle)
        self.small.put(where, other.small)
