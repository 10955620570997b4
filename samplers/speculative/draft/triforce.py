"""Drafts with the target on a part of its K/V, for which a small model drafts in turn.

TriForce: Lossless Acceleration of Long Sequence Generation with Hierarchical Speculative Decoding,
https://arxiv.org/abs/2404.11912

    until a row has gamma tokens:
      y_i ~ m(. | text, x, y_1 .. y_(i-1)),  i = 1 .. k                       small model
      y_i kept  iff  u m(y_i) < p'(y_i);  then one token of norm([p' - m]+), or of p' after the last target, part of K/V
    x_j accepted  iff  u p'(x_j) < p(x_j);  at the first rejection  next ~ norm([p - p']+)             target, all K/V

A token that leaves the inner loop is distributed as p' given what is before it, so that q = p' at the time it was drawn
makes the outer test exact. `read` is a cache of an autoregressive spec; after every round the target's own keys and
values replace those that were made while drafting.

Deviates from the authors' code: rows of any lengths in a batch; the small model reads its whole text; tokens drafted
are cut at the length limit alone, gamma and up to k more per round.
Exact: greedy and distribution, with an exact acceptance, whichever small model and cache draft.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from pardec.models.errors import ModelError, PardecError
from pardec.models.model import LanguageModel
from pardec.models.plan import Plan, Visible

from ...host_transfer import to_host, upload
from ...ops.inverse_cdf import sample
from ...registry import register
from ...spec import ModelName
from ...traits import Reasons, Trait
from ..contracts import DecodeContext, Draft, InverseCDFUniforms, RoundResult, TargetDistributions, Uniforms
from ..draft_model import DraftModelState, ModelDrafter, check_pair
from ..ops.verification import judge
from ..sequences import Sequences
from ..shape.chain import Chain
from ..sparse_kv import COPIES_KV, FINDS_KV, READS_PART, SparseDraftState, sparse_attention_of


class DraftedText:
    """The text and this round's draft, to which an inner verify loop commits.

    Attributes:
        text: what the inner loop sees as the rows' committed tokens.
    """

    def __init__(self, text: Sequences, distribution: Callable[..., Tensor]) -> None:
        self.outer, self._distribution = text, distribution
        self.text = Sequences([torch.zeros(0, dtype=torch.int64)], [0], pad_id=text.pad_id, device=text.device)
        self.begin()

    def begin(self) -> None:
        """Resets the draft to no tokens."""
        outer, text = self.outer, self.text
        for name in ("rows", "prompt", "length", "limit", "nfe", "host", "commit_step", "commit_score"):
            setattr(text, name, getattr(outer, name).copy())
        text.tokens = torch.from_numpy(text.host) if text.device.type == "cpu" else outer.tokens.clone()
        self._probs: list[tuple[np.ndarray, np.ndarray, Tensor]] = []

    @property
    def count(self) -> np.ndarray:
        """[B]: the number of drafted tokens."""
        result: np.ndarray = self.text.length - self.outer.length
        return result

    def commit(self, tokens: np.ndarray, counts: np.ndarray, probs: Tensor | None) -> None:
        """Appends the first counts[b] of `tokens` [B, D], samples of `probs` [B, D, V]; None: point masses."""
        if probs is not None:
            self._probs.append((self.count, counts, probs))
        self.text.commit(tokens, counts, np.zeros(tokens.shape, dtype=np.float32))

    def distribution(self, raw: Tensor, draft: Draft, nodes: Tensor) -> Tensor:
        """Processed logits after `nodes` [B, K] of an inner draft, which is a chain: see `DecodeContext`."""
        count = upload(self.count, nodes.device)[:, None]
        chain = self._chain(int(self.count.max()) + draft.width)
        order = torch.arange(chain.shape[1], device=nodes.device) - count
        inner = draft.tokens.gather(1, order.clamp(0, draft.width - 1))
        whole = Draft(torch.where(order > 0, inner, chain), self.count + draft.sizes, self.outer.length - 1)
        return self._distribution(raw, whole, torch.where(nodes < 0, -1, nodes + count))

    def draft(self) -> Draft:
        """All drafted tokens as one chain."""
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
            rows, columns = np.nonzero(np.arange(probs.shape[1]) < counts[:, None])
            row, column, to = (upload(each, q.device) for each in (rows, columns, start[rows] + 1 + columns))
            q[row, to] = probs[row, column].float()
        return Draft(tokens, count + 1, self.outer.length - 1, q=q)

    def _chain(self, width: int) -> Tensor:
        """[B, width]: tokens from each row's last committed one on."""
        order = upload(self.outer.length[:, None] - 1 + np.arange(width), self.text.device)
        return self.text.tokens.gather(1, order.clamp(max=self.text.tokens.shape[1] - 1))


@dataclass(frozen=True)
class InnerUniforms:
    """The random numbers of one inner round, drawn from the outer round's under other purposes."""

    outer: InverseCDFUniforms
    number: int  # number of the inner round

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


class MiddleModel(SparseDraftState):
    """The target on a part of its K/V, which verifies an inner draft."""

    def verify(self, draft: Draft) -> Tensor:
        """Raw logits [B, T, V] after the nodes of a chain."""
        base, device = draft.base, draft.tokens.device
        same = bool((base == base[0]).all() and (draft.sizes == draft.width).all())
        start, stop = int(base[0]), int(base[0]) + draft.width
        order = torch.arange(draft.width, device=device)
        sizes = upload(draft.sizes, device)
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
        """Starts a round, in which nothing has run."""
        self.calls = 0
        self.runs.clear()
        self.highest = torch.zeros((), device=self.context.text.device)


@dataclass
class Hierarchy:
    """The three levels of one request; rows are removed and added in the two that have caches."""

    drafted: DraftedText
    middle: MiddleModel
    small: DraftModelState

    def failure(self) -> PardecError:
        """The error for logits of this round that are not finite."""
        return (self.small if bool(self.middle.highest.isfinite()) else self.middle).failure()


@register("triforce", exact="greedy", checked="joint")
class TriForce(ModelDrafter):
    role = "the small draft model"
    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"gamma": (6, 4, 8), "k": (2, 3)}
    requires: ClassVar[Reasons] = {Trait.PLAIN_DECODER: READS_PART}
    conflicts: ClassVar[Reasons] = {Trait.ENCODES_KV: COPIES_KV, Trait.MOVES_KV: FINDS_KV}
    _attention: ClassVar[Any]

    name: Annotated[ModelName | None, "the small draft model: embedded name, folder or hub id"] = None
    read: Annotated[str, 'spec of the cache that drafts, quoted: "retrieval:budget=512" or "streaming:window=496"'] = (
        "retrieval"
    )
    k: Annotated[int, "tokens that the small model drafts at a time"] = 2
    gamma: Annotated[int, "tokens drafted before the target verifies them; up to k more may follow"] = 6

    def __post_init__(self) -> None:
        self.require("k", "gamma", least=1)
        object.__setattr__(
            self, "_attention", sparse_attention_of(self.read, "triforce")
        )  # no field: it follows from the spec

    def cost_ratio(self, target: object, draft_model: object) -> None:
        """None: a round has forwards of both models."""

    @property
    def last_queries(self) -> int:
        return int(self._attention.last_queries)

    def width(self, model: LanguageModel) -> int:
        return self.gamma + self.k + 1

    def start(self, context: DecodeContext) -> Hierarchy:
        small = context.request.draft_model
        if not isinstance(small, LanguageModel):
            raise ModelError("triforce: the request has no small model", "load it and pass it as Request.draft_model")
        check_pair(small, context.model)
        drafted = DraftedText(context.text, context.distribution)
        middle = MiddleModel(context, self._attention, self.gamma + self.k)
        sampler = replace(context.sampler, shape=Chain(), length=None)
        inner = replace(context, text=drafted.text, distribution=drafted.distribution, sampler=sampler)
        cache = context.drafter_cache(small)
        state = DraftModelState(inner, small, cache, own=True)
        state.reuse_prefixes()
        return Hierarchy(drafted, middle, state)

    def propose(self, context: DecodeContext, remaining: np.ndarray, uniforms: Uniforms, state: Hierarchy) -> Draft:
        assert isinstance(uniforms, InverseCDFUniforms), "the loop's are"
        drafted, text, middle, small = state.drafted, state.drafted.text, state.middle, state.small
        drafted.begin()
        middle.begin()
        forwards, highest = 0, middle.highest
        sampling = context.request.temperature > 0
        for number in range(self.gamma):  # each inner round gives every open row at least one token
            open_rows = drafted.count < np.minimum(remaining, self.gamma)
            if not open_rows.any():
                break
            own = InnerUniforms(uniforms, number)
            left = np.where(open_rows, remaining - drafted.count - 1, 0)
            draft = small.draft(self.k, left, own)
            forwards += draft.forwards
            highest = highest + (0 if draft.highest is None else draft.highest)
            raw = middle.verify(draft)
            nodes = torch.arange(draft.width, device=raw.device)
            sizes = upload(draft.sizes, raw.device)[:, None]
            logits = drafted.distribution(raw, draft, torch.where(nodes < sizes, nodes, -1))
            distributions = TargetDistributions(raw, logits, greedy=not sampling)
            verdict = judge(draft, distributions.probs, own)
            lead = torch.arange(draft.width, device=raw.device) < verdict.count[:, None]
            tokens = torch.where(lead, draft.tokens.roll(-1, 1), verdict.next[:, None])
            small_sees = RoundResult(draft, verdict, distributions, text.length.copy(), np.zeros_like(remaining))
            read = to_host({"count": verdict.count, "tokens": tokens, **small.to_observe(small_sees)})
            counts = np.where(open_rows, read["count"] + 1, 0)
            drafted.commit(read["tokens"], counts, distributions.probs if sampling else None)
            small.observe(replace(small_sees, gained=counts, on_host=read))
        return replace(drafted.draft(), forwards=forwards + middle.calls, highest=highest + middle.highest)

    def observe(self, outcome: RoundResult, context: DecodeContext, state: Hierarchy) -> None:
        state.middle.follow()
        state.small.cached = np.minimum(state.small.cached, context.text.length - 1)
