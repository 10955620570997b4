"""Tests each token by two predictions of one forward: before it, and again after the whole draft and a probe.

Think Before You Accept: Semantic Reflective Verification for Faster Speculative Decoding,
https://arxiv.org/abs/2505.18629

    fed: draft x_1 .. x_k, probe, x_1 .. x_(k-1) once more;  p_r(. | x_1 .. x_(i-1)) = p after the second x_(i-1)
    x_i accepted  iff  u q(x_i) < p_f(x_i);  p_f = softmax((1 - alpha) l + alpha l_r)  or  (1 - alpha) p + alpha p_r
    at the first rejection  next ~ norm([p - q]+),  after the last  next ~ p

l are the logits. What follows the draft is a chain after it: the second copy sees the text, the draft, the probe and
its own beginning; the draft and what is committed never see either. Both logits are processed as those of the draft's
own nodes. At temperature 0 a token is accepted iff it is the likeliest of p_f, the distributions mixed being those of
temperature 1. A row with fewer positions left than would be fed is verified without a second opinion.

The reported deviation is the sum of |a(x) - min(1, p(x)/q(x))| over the tested tokens, a being this rule's acceptance
probability; averaged over drafts it bounds the total variation from the target's distribution. It takes a target that
follows instructions for the second opinion to be worth anything.

Deviates from the paper: the last token is not copied, since no drafted token follows it; the probe's words and alpha
are not the authors', who have published no code. Trees are refused: each path would need a copy of its own.
Exact: no, except with alpha=0, where nothing is added to the pass and the rule is `speculative`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from pardec.models.errors import SpecError
from pardec.models.model import LanguageModel

from ...batching import RowState
from ...host_transfer import upload
from ...ops.confidence import argmax
from ...registry import register
from ...traits import Reasons, Trait, Why
from ..contracts import Acceptance, DecodeContext, Draft, TargetDistributions, Uniforms, Verdict, one_chain
from ..ops.relaxed import relaxed
from ..ops.verification import Exact, Trial, judge
from .greedy import follow


@dataclass(frozen=True, slots=True, eq=False)
class Reflection(RowState):
    """The probe's tokens [P] int64, which all rows of a request share, and its context."""

    probe: Tensor
    context: DecodeContext

    def added(self, draft: Draft) -> np.ndarray:
        """[B]: the number of nodes added after each row's draft; -1 in rows without a draft or without room."""
        added = len(self.probe) + draft.sizes - 2  # the last token is not copied: no drafted token follows it
        fits = (draft.sizes > 1) & (draft.base + draft.sizes + added <= self.context.text.limit)
        result: np.ndarray = np.where(fits, added, -1)
        return result

    def extended(self, draft: Draft) -> Draft:
        """The chains, each followed by the probe and a second copy of itself."""
        probe, device = self.probe, draft.tokens.device
        sizes = draft.sizes + self.added(draft).clip(0)
        size, width = upload(draft.sizes, device)[:, None], int(sizes.max())
        behind = torch.arange(width, device=device) - size  # index among the added nodes
        copied = (behind - len(probe) + 1).clamp(0, draft.width - 1)
        tokens = torch.where(behind < 0, pad(draft.tokens, (0, width))[:, :width], draft.tokens.gather(1, copied))
        if len(probe):
            inside = (behind >= 0) & (behind < len(probe))
            tokens = torch.where(inside, probe[behind.clamp(0, len(probe) - 1)], tokens)
        return Draft(tokens, sizes, draft.base)

    def second(self, draft: Draft) -> Tensor:
        """[B, T] int64: for each node before a drafted token, the fed node that predicts this token again; else -1."""
        size = np.where(self.added(draft) >= 0, draft.sizes, 0)
        last = upload(size, draft.tokens.device)[:, None] - 1
        order = torch.arange(draft.width, device=last.device)
        return torch.where(order < last, last + len(self.probe) + order, -1)


_PROBE = " Let me check this again: "


@register("reflective", checked="reference:samplers.speculative.test_reflective.naive")
class Reflective(Acceptance):
    requires, _one_chain = one_chain("repeats one drafted chain per row")
    conflicts: ClassVar[Reasons] = {
        **_one_chain,
        Trait.ADDS_VERIFY_NODES: Why(
            "{me} adds nodes to the verify forward, and {other!r} drafts in that forward",
            "draft with model:name=..., a draft module or lookup",
        ),
    }
    quality_grid: ClassVar[dict[str, tuple[object, ...]]] = {"alpha": (0.1, 0.2, 0.3, 0.5, 0.8)}

    alpha: Annotated[float, "weight of the second prediction"] = 0.3
    probe: Annotated[str | None, "the text between the draft and its second copy; none: Let me check this again"] = None
    mix: Annotated[Literal["logits", "probs"], "what is mixed with weight alpha"] = "logits"

    def __post_init__(self) -> None:
        self.require("alpha", least=0, most=1, hint="alpha=0 is the exact rule")

    @property
    def exact(self) -> str:
        return "relaxed" if self.alpha else "distribution"

    def start(self, context: DecodeContext) -> Reflection:
        ids = self._tokenised(context.model) if self.alpha else []
        return Reflection(upload(torch.tensor(ids, dtype=torch.int64), context.text.device), context)

    def _tokenised(self, model: LanguageModel) -> list[int]:
        probe = _PROBE if self.probe is None else self.probe
        if not probe:
            return []
        if model.tokenizer is None:
            raise SpecError(
                f"reflective: probe is text, and {model.name} has no tokenizer", hint='write probe="" to use none'
            )
        return list(model.tokenizer.encode(probe, add_special_tokens=False))

    def extend(self, draft: Draft, context: DecodeContext, state: Reflection) -> Draft:
        return state.extended(draft) if self.alpha and draft.width > 1 else draft

    def accept(
        self, draft: Draft, distributions: TargetDistributions, uniforms: Uniforms, state: Reflection
    ) -> Verdict:
        if not self.alpha or distributions.extended is None:
            if distributions.greedy:
                return follow(draft, distributions.pick)
            return judge(draft, distributions.probs, uniforms)
        second = state.second(draft)[..., None]
        reflected = distributions.extended.gather(1, second.clamp(min=0).expand(-1, -1, distributions.raw.shape[-1]))
        reflected = torch.where(second >= 0, reflected, distributions.raw)
        fused = self.fused(draft, distributions, reflected, state.context)
        return relaxed(draft, distributions.probs, uniforms, _Fused(fused))

    def fused(
        self, draft: Draft, distributions: TargetDistributions, reflected: Tensor, context: DecodeContext
    ) -> Tensor:
        """p_f [B, T, V] float32 after every node; `reflected` [B, T, V] are the raw logits of the second opinion."""
        if self.mix == "logits":
            logits = context.target_distribution(torch.lerp(distributions.raw, reflected, self.alpha), draft)
            fused = logits if distributions.greedy else logits.softmax(-1)
        else:
            again = context.target_distribution(reflected, draft).softmax(-1)
            fused = torch.lerp(distributions.logits.softmax(-1), again, self.alpha)
        if distributions.greedy:
            return torch.zeros_like(fused).scatter_(-1, argmax(fused)[..., None], 1.0)
        return fused


class _Fused(Exact):
    """The test against p_f [B, T, V]; a rejection leaves the residual of p."""

    def __init__(self, fused: Tensor) -> None:
        self.fused = fused

    def weight(self, r: Tensor, trial: Trial) -> Tensor:
        return self.fused[trial.row, trial.parent, trial.token]
