"""Also accepts rejected tokens that a linear head on the target's states predicts to be harmless.

Judge Decoding: Faster Speculative Sampling Requires Going Beyond Model Alignment, https://arxiv.org/abs/2501.19309
AutoJudge: Judge Decoding Without Manual Annotation, https://arxiv.org/abs/2504.20039 (labels, and what the head reads)

    x accepted  iff  the exact rule accepts it, or P(important | h) < thr;  P = sigmoid(w . (h - mean) / scale + b)
    where neither does, the next token is the exact rule's: the likeliest, or one of the residual of p

h is the target's normed state at x itself, which it has read: the pass that verifies has it already. The exact rule is
`greedy` at temperature 0 and `speculative` above. The head is asked only where that rule rejects all children of a
node, and of those that pass the one that matters least is taken. Heads are trained by scripts/train_judge.py, with
AutoJudge's labels: a token matters if the target's own continuation after it no longer gives the right answer.

The embedded head of tiny-llama is an example: nine in ten of the tokens in which drafts of its first layers differ
matter, so that it saves next to nothing (see its card.json).

After a token that the head alone has accepted, the target goes on from the draft's text. The reported deviation is the
sum of 1 - p(x) over these tokens, p being what the target samples from: at temperature 0 it counts them.

Deviates from the papers: a threshold of P(important), as AutoJudge has it, for both; trees; temperatures above 0 with
the residual of the exact rule, so that a head that accepts nothing changes nothing.
Exact: no, except with thr=0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from pardec.models.errors import ModelError, SpecError
from pardec.models.plan import TargetStates

from ...batching import RowState
from ...ops.judge_heads import JudgeHead, load_judge, locate_judge
from ...registry import register
from ...request import Request
from ..contracts import Acceptance, DecodeContext, Draft, SpeculativeSampler, TargetDistributions, Uniforms, Verdict
from ..ops.verification import Exact, judge, judge_siblings
from .greedy import follow


@dataclass(frozen=True, slots=True, eq=False)
class JudgeState(RowState):
    """The head and its threshold, which all rows of a request share."""

    head: JudgeHead
    thr: float


@register("judge", checked="reference:samplers.speculative.test_judge.naive")
class Judge(Acceptance):
    quality_grid: ClassVar[dict[str, tuple[object, ...]]] = {"thr": (0.02, 0.05, 0.1, 0.2, 0.4)}

    head: Annotated[str | None, "an embedded head, or a folder with head.safetensors and config.json"] = None
    thr: Annotated[
        float | None,
        "probability of an important token, by the head, at which it is rejected; none: the head's stored value",
    ] = None

    def __post_init__(self) -> None:
        self.require("thr", least=0, most=1, hint="thr=0 is the exact rule")

    @property
    def exact(self) -> str:
        return "distribution" if self.thr == 0 else "relaxed"

    def check(self, sampler: SpeculativeSampler) -> None:
        if self.head is None and self.exact == "relaxed":
            raise SpecError(
                "judge: head is missing; it names the head that predicts which tokens matter",
                hint="write judge:head=... with an embedded name, or a folder that scripts/train_judge.py wrote",
            )

    def admit(self, request: Request, sampler: Any) -> None:
        if self.head is not None:
            locate_judge(self.head)

    def target_states(self, request: Request) -> TargetStates | None:
        return None if self.exact == "distribution" else TargetStates(normed=True)

    def start(self, context: DecodeContext) -> JudgeState | None:
        if self.exact == "distribution" or self.head is None:
            return None
        head, model = load_judge(self.head), context.model
        if head.width != model.width:
            raise ModelError(
                f"the judge {self.head!r} reads states of width {head.width}, and those of {model.name} have"
                f" {model.width}",
                f"it was trained on {head.target}; train one for {model.name} with scripts/train_judge.py",
            )
        thr = head.thr if self.thr is None else self.thr
        if thr is None:
            raise SpecError(f"judge: no threshold is stored with {self.head!r}", hint="write thr=...")
        return JudgeState(head.to(context.text.device), thr)

    def accept(
        self, draft: Draft, distributions: TargetDistributions, uniforms: Uniforms, state: JudgeState | None
    ) -> Verdict:
        if state is None or not state.thr or draft.width == 1:
            if distributions.greedy:
                return follow(draft, distributions.pick)
            return judge(draft, distributions.probs, uniforms)
        assert distributions.states is not None, "asked for in `target_states`"
        important = state.head(distributions.states).masked_fill(~draft.tested, torch.inf)  # [B, T]
        alone = torch.zeros_like(draft.tested)
        order = torch.arange(draft.width, device=important.device)

        def rescue(rejected: Tensor) -> Tensor:
            """[B, T] bool: the least important of the `rejected` children of a node, if it is below the threshold."""
            risk = important.masked_fill(~rejected, torch.inf)
            passed = (order == risk.argmin(1, keepdim=True)) & (risk < state.thr)
            alone.logical_or_(passed)
            return passed

        verdict = judge_siblings(draft, distributions.probs, uniforms, Exact(), rescue)
        rows = torch.arange(len(important), device=important.device)[:, None]
        off = 1 - distributions.probs[rows, draft.parent.clamp(min=0), draft.ids]
        return replace(verdict, deviation=off.masked_fill(~alone, 0).cumsum(1)[:, -1])
