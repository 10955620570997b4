"""Draws several groups ahead from one state, and takes a short denoising path where a token's own state is close to it.

FastHybrid: Accelerating Hybrid Autoregressive Image Generation with Lookahead and Guided Decoding,
https://cvpr.thecvf.com/virtual/2026/poster/38500

    look ahead:  z'_j, x'_j for the tokens j of the next k groups, all from what is known now, by the head's full path
    step:        z_j from what is known then;  cos(z_j, z'_j) >= tau: a path of `short` transitions t = short .. 1,
                 whose means are  (1 - g_t) mu_t + g_t x'_j,  g_t = 1 - cos^2(pi t / (2 short))
                 else the full path for j, and the row looks ahead again from here

The backbone gives the states of all groups in the call that each step needs anyway. A group that was drawn ahead takes
`short` transitions after the group before it instead of the head's number; the head computes more rows in all, at once.
States are compared, and paths guided, with the guidance of each group's own step; both paths of a token have the same
noise. `order=checker` is that of `mar`.
Known from a summary only: that the first of the k groups keeps the vector of its look-ahead, that tokens are judged one
by one, and that t counts from 1 at the last transition are decided here.
On the small model that ships the defaults are too far ahead: k=3,tau=0.98 keeps its classes readable.
Exact: no; with tau above 1, or k=1, the images of `mar` with the same steps, last, guidance, head and order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from pardec.models.continuous.contracts import ContinuousModel, Head, States
from pardec.models.errors import SpecError

from ...host_transfer import download
from ...ops.denoising_paths import Last, denoise, width
from ...ops.unmasking import Guidance
from ...registry import register
from ..contracts import ContinuousContext, RoundResult
from .drafting_ahead import LookaheadMethod, group_indices


@dataclass(slots=True, eq=False)
class Ahead:
    """The tokens that the last look-ahead of each row drew, with their states."""

    drawn: Tensor  # [n, S] bool: the tokens that it drew
    vectors: Tensor  # [n, S, d]
    states: Tensor  # [n, S, E] guided; [n, S, 0] before the first


@register(
    "fasthybrid",
    paper="https://cvpr.thecvf.com/virtual/2026/poster/38500",
    checked="reference:samplers.continuous.test_fasthybrid.naive",
)
class FastHybrid(LookaheadMethod):
    quality_grid: ClassVar[dict[str, tuple[object, ...]]] = {"tau": (0.95, 0.9, 0.8, 0.6, 0.4)}

    k: Annotated[int, "groups drawn from one state, the present one among them"] = 7
    tau: Annotated[float, "least cosine of a token's states then and now for a short path; above 1: none"] = 0.8
    short: Annotated[int, "transitions of a short path"] = 10
    steps: Annotated[int, "steps of the schedule, at most one per token"] = 64
    guidance: Annotated[Guidance, "how cfg grows over the steps: linear or constant"] = "linear"
    last: Annotated[Last, "the path's last transition: map (its mean), noise (a sample) or x1 (left out)"] = "map"
    head: Annotated[int | None, "denoising transitions of the full path; none: the model's number"] = None
    order: Annotated[
        Literal["random", "checker"], "order of the tokens; checker: every second one at the last step"
    ] = "random"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("k", least=1)
        self.require("tau", least=0)
        self.require("short", least=2)

    @property
    def exact(self) -> str:
        return "distribution" if self.tau > 1 or self.k == 1 else "relaxed"

    def check_model(self, model: ContinuousModel) -> None:
        super().check_model(model)
        if model.backbone.next_token:
            raise SpecError(
                f"fasthybrid draws several groups from one state, and {model.name} predicts each token from all tokens "
                "before it",
                hint="use sequential; seeded_jacobi and cspd:mode=exact take fewer forwards",
            )
        most = self.head or model.head.steps
        if self.short > most:
            raise SpecError(
                f"fasthybrid: short={self.short} is more than the {most} transitions of the full path of {model.name}",
                hint="set a smaller short, or a larger head",
            )

    def start(self, context: ContinuousContext) -> Ahead:
        super().start(context)
        latents = context.images.latents
        return Ahead(torch.zeros_like(context.images.known()), latents.clone(), latents[..., :0])

    def round(self, context: ContinuousContext, state: Ahead) -> RoundResult:
        images, groups = context.images, self.next_groups(context, self.k)
        number = group_indices(groups)
        wanted, now = number < len(groups), number == 0
        states = context.states(images.known(), wanted, groups[0].scale)
        scales = [group.scale for group in groups if group.scale is not None]
        if scales:  # each token has its group's
            each = torch.stack([*scales, scales[0]], 1).gather(1, number)  # [n, S]
            states = replace(states, scale=each[wanted])
        images.add_forward()
        with context.watch("head"):
            seen = _guided(states)
            tested = now & state.drawn
            follows = tested.clone()
            if state.states.shape[-1]:
                follows[wanted] &= cosine_similarity(seen, state.states[wanted], -1) >= self.tau
            again = (now & ~follows).any(1, keepdim=True)
            fresh = (wanted & again) & ~follows
            vectors = state.vectors.clone()
            if bool(fresh.any()):
                vectors[fresh] = self._paths(context, context.head, states[fresh[wanted]], fresh)
            if bool(follows.any()):
                short, guide = context.head_of(self.short), state.vectors[follows]
                vectors[follows] = self._paths(context, short, states[follows[wanted]], follows, guide)
            compared = seen.new_zeros(*wanted.shape, seen.shape[-1])
            compared[wanted] = seen
            if state.states.shape[-1]:
                compared = torch.where(again[..., None], compared, state.states)
            state.states, state.drawn = compared, torch.where(again, wanted & ~now, state.drawn)
            state.vectors = torch.where(now[..., None], state.vectors, vectors)
        images.commit(now, vectors[now])
        return RoundResult(drafted=download(tested.sum(1)), accepted=download(follows.sum(1)))

    def _paths(
        self, context: ContinuousContext, head: Head, states: States, which: Tensor, guide: Tensor | None = None
    ) -> Tensor:
        """[N, d]: the tokens where `which` [n, S] is True, by the head's path; its noise is the same at any length."""
        noise = context.images.noise(which, "token", width(context.head))[:, : width(head)]
        temperature = context.request.temperature
        return denoise(head, states, noise, temperature=temperature, last=self.last_kind, guide=guide)


def _guided(states: States) -> Tensor:
    """[N, E] float32: the states as guidance extrapolates them."""
    cond = states.cond.float()
    if states.uncond is None or states.scale is None:
        return cond
    plain = states.uncond.float()
    return plain + states.scale[:, None] * (cond - plain)
