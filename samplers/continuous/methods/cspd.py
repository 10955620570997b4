"""Drafts groups of vectors with a smaller model and accepts them by ratios of densities along denoising paths.

Continuous Speculative Decoding for Autoregressive Image Generation, https://arxiv.org/abs/2411.11925

    reference: each of k steps' tokens x = mu_q,1 is accepted if u < ratio(x) (`log_ratio`), target and
               draft with the same noise; the target sees what was known at its last test; a rejected one is replaced
    exact:     log u < log p(path) - log q(path), the path being the draft's; a rejected one is sampled from
               max(0, p - q) over paths, and groups after it are dropped and drafted anew

Deviates from the authors' code: in `mode=reference` a rejected token takes its first accepted proposal, and after 100
tries the target's own token. `reference=true` restores theirs: all tokens of all rows are tried until each had one, the
last accepted counts, and zeros may remain, so that a row depends on its batch. Rounds count from the schedule's start.
`mode=exact` is not theirs; one call runs the target on every group, given the tokens before it, drafts included.
Exact: no: the published ratio is not that of the tokens' distributions, and drafts after a replaced one stay; the
deviation is not bounded. With `mode=exact` the distribution is that of `mar` with the same steps, last, guidance, head.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from pardec.models.continuous.contracts import ContinuousModel, Head, States, check_pair
from pardec.models.errors import ModelError, SpecError

from ...host_transfer import download
from ...ops.denoising_paths import DenoisingPath, Last, log_density, rescore, token, trace, width
from ...ops.unmasking import Guidance
from ...registry import register
from ...spec import ModelName
from ..contracts import ContinuousContext, RoundResult
from .drafting_ahead import Group, LookaheadMethod, group_indices, group_states, raster_order


@dataclass(frozen=True)
class CSpDSettings(LookaheadMethod):
    """The settings of the method, checked when they are set."""

    draft: Annotated[ModelName | None, "the draft model: embedded name, folder or hub id"] = None
    k: Annotated[int, "steps that the draft model takes before the target tests them"] = 8
    mode: Annotated[
        Literal["reference", "exact"], "reference: as published; exact: keeps the target's distribution"
    ] = "reference"
    steps: Annotated[int, "steps of the schedule, at most one per token; next-token models take one per token"] = 64
    guidance: Annotated[Guidance, "how cfg grows over the steps: linear or constant"] = "linear"
    last: Annotated[
        Last | None, "the path's last transition: map, noise or x1 (see mar); none: map, or x1 with mode=exact"
    ] = None
    head: Annotated[int | None, "denoising transitions of both heads; none: the model's number"] = None
    prefill: Annotated[float, "share of the steps, from the first on, that the target takes alone"] = 0.15
    tau: Annotated[float, "mode=reference: factor that widens the last transition's Gaussians in the test"] = 42.0
    derived: Annotated[bool, "mode=reference: the factor of the other transitions as derived, not as published"] = False
    reference: Annotated[
        bool, "mode=reference: resample rejected tokens as the authors' code does, which can leave zeros"
    ] = False
    slack: Annotated[float, "mode=exact: factor of the acceptance ratio; above 1 accepts more and is not exact"] = 1.0

    def __post_init__(self) -> None:
        if self.last is None:
            object.__setattr__(self, "last", "map" if self.mode == "reference" else "x1")
        super().__post_init__()
        self.require("k", least=1)
        if not 0 <= self.prefill <= 1:
            raise SpecError(f"cspd: prefill must be a share from 0 to 1, got {self.prefill}")
        if not (self.tau > 0 and math.isfinite(self.tau)):
            raise SpecError(f"cspd: tau must be above 0, got {self.tau}")
        if not (self.slack >= 1 and math.isfinite(self.slack)):
            raise SpecError(f"cspd: slack must be at least 1, got {self.slack}")
        other_mode = {"exact": ("tau", "derived", "reference"), "reference": ("slack",)}[self.mode]
        for name in other_mode:
            if getattr(self, name) != getattr(type(self), name):
                raise SpecError(f"cspd: {name}={getattr(self, name)} does not apply to mode={self.mode}")
        if self.mode == "reference" and self.last != "map":
            raise SpecError(
                f"cspd: last={self.last} does not go with mode=reference, which tests the last transition's mean (map)",
                hint="leave last out, or use mode=exact",
            )
        if self.mode == "exact" and self.last == "map" and self.k > 1:
            raise SpecError(
                f"cspd: last=map with k={self.k} is not exact: later drafts depend on the draft's last mean, "
                "and the target's differs",
                hint="use last=x1, last=noise or k=1",
            )


class Drafter:
    """The draft model of a request. Indexes rows of the request, not live rows."""

    def __init__(self, draft_model: ContinuousModel, context: ContinuousContext) -> None:
        target = context.model
        check_pair(draft_model, target)
        # The same checkpoint gives the same distributions: two calls must not differ by rounding.
        self.same = draft_model is target or (
            draft_model.name == target.name
            and _folder(draft_model) == _folder(target) is not None
            and draft_model.weights_version == target.weights_version == 0
        )
        self.model = target if self.same else draft_model
        self.head: Head = context.head if self.same else draft_model.head.respaced(context.head.steps)


def _folder(model: ContinuousModel) -> Path | None:
    return model.path and model.path.resolve()


@dataclass(frozen=True, slots=True, eq=False)
class Drafts:
    """The drafted tokens, N of them, row after row in raster order."""

    wanted: Tensor  # [n, S] bool: the drafted tokens
    number: Tensor  # [n, S] int64: the group of each token; the number of groups where none is drafted
    path: DenoisingPath
    states: States  # the drafter's
    latents: Tensor  # [n, S, d]: known and drafted tokens
    forwards: np.ndarray  # [n] calls that drafted for each row


def draft(context: ContinuousContext, drafter: Drafter, groups: list[Group], last: Last) -> Drafts:
    """Samples the groups one after the other, each given the earlier ones, with the noise that the target would use."""
    images, latents = context.images, context.images.latents.clone()
    paths: list[DenoisingPath] = []
    all_states: list[States] = []
    for group in groups:
        known = images.known(group.start)
        states = context.states(
            known, group.wanted, group.scale, model=drafter.model, name="draft backbone", latents=latents
        )
        with context.watch("draft head"):
            noise = images.noise(group.wanted, "token", width(drafter.head))
            path = trace(drafter.head, states, noise, temperature=context.request.temperature)
        latents[group.wanted] = token(path, drafter.head, last)
        paths.append(path)
        all_states.append(states)
    rows, index = torch.cat([group.wanted.nonzero() for group in groups]).unbind(1)
    order = raster_order(rows, index, images.tokens)
    number = group_indices(groups)
    forwards = np.sum([group.stop > group.start for group in groups], axis=0)
    return Drafts(
        number < len(groups), number, _join_paths(paths, order), _join_states(all_states)[order], latents, forwards
    )


def _join_states(states: list[States]) -> States:
    cond = torch.cat([each.cond for each in states])
    uncond = [each.uncond for each in states if each.uncond is not None]
    scale = [each.scale for each in states if each.scale is not None]
    return States(cond, torch.cat(uncond), torch.cat(scale)) if uncond else States(cond)


def _join_paths(paths: list[DenoisingPath], order: Tensor) -> DenoisingPath:
    points, means, deviations = (
        torch.cat([getattr(path, field.name) for path in paths], 1)[:, order] for field in fields(DenoisingPath)
    )
    return DenoisingPath(points, means, deviations)


_ROWS = 256  # tries per call, unless more tokens need one
_TRIES = 2**16  # tries per token; with correct densities at most one token in 10^5 needs more


def exact_round(method: CSpDSettings, context: ContinuousContext, drafter: Drafter) -> RoundResult:
    """Drafts k groups, tests each given the tokens before it, and commits up to the first group with a rejection."""
    images, temperature, last = context.images, context.request.temperature, method.last_kind
    groups = method.next_groups(context, method.k)
    drafts = draft(context, drafter, groups, last)
    states, rows = group_states(context, groups, drafts.latents)
    images.add_forward()
    with context.watch("head"):
        # A draft by the target itself has the same distribution: only rounding could reject.
        own = drafts.path if drafter.same else rescore(context.head, states, drafts.path, temperature=temperature)
        ratio = log_density(own, last) - log_density(drafts.path, last)
        passed = images.uniforms(drafts.wanted, "accept").log() < ratio + math.log(method.slack)
        tokens = token(own, context.head, last)
        accepted = torch.zeros_like(drafts.wanted)
        accepted[drafts.wanted] = passed
        stays, again, dropped = split_drafts(accepted, drafts.number, len(groups))
        if bool(again.any()):
            tokens = tokens.clone()
            which = again[drafts.wanted]
            tokens[which] = _residual(context, drafter, again, states[which], drafts.states[which], last)
    final = stays | again
    inside = final[drafts.wanted]
    images.commit(final, tokens[inside], ratio[inside].exp().clamp(max=1))
    images.visits += dropped  # the next draft there has other noise
    return RoundResult(
        drafted=download(final.sum(1)),
        accepted=download(stays.sum(1)),
        draft_forwards=drafts.forwards,
        contexts=rows,
    )


def split_drafts(accepted: Tensor, number: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The drafts that stay, those that are sampled again, and those that are dropped; [n, S] bool each.

    `accepted` [n, S] marks those that passed; `number` [n, S] is the group of each draft, `count` where there is none.
    Nothing stays of groups after the first one with a rejection.
    """
    rejected = (number < count) & ~accepted
    first = torch.where(rejected, number, count).amin(1, keepdim=True)
    return accepted & (number <= first), rejected & (number == first), (number < count) & (number > first)


def _residual(
    context: ContinuousContext, drafter: Drafter, again: Tensor, target: States, other: States, last: Last
) -> Tensor:
    """[m, d]: new tokens where `again` is True, sampled from the residual max(0, p - q) over paths.

    Target paths are tried until one is accepted; tries are numbered, so that which one depends on no other token.
    """
    images, temperature = context.images, context.request.temperature
    result = torch.empty(len(target), context.head.size, device=images.device)
    left = torch.arange(len(result), device=images.device)
    past, size = 0, 1  # tries so far, and tries that come next
    while len(left):
        if past >= _TRIES:
            raise ModelError(
                f"cspd: none of {past} samples of {context.model.name} was accepted in place of a rejected token of "
                f"{drafter.model.name}: samples and densities do not agree",
                hint="load both models with dtype=float32, or decode with mar",
            )
        open_ = torch.zeros_like(again)
        open_[again] = torch.isin(torch.arange(len(result), device=left.device), left)
        tries = range(past, past + size)
        noise = torch.cat([images.noise(open_, "residual", width(context.head), again=number) for number in tries])
        u = torch.cat([images.uniforms(open_, "residual accept", again=number) for number in tries])
        which = left.repeat(size)
        path = trace(context.head, target[which], noise, temperature=temperature)
        drafts = rescore(drafter.head, other[which], path, temperature=temperature)
        ratio = log_density(path, last) - log_density(drafts, last)
        if bool(ratio.isnan().any()):  # none would ever be accepted
            raise ModelError(
                f"{context.model.name} or {drafter.model.name} gives densities that are NaN",
                hint="load both with dtype=float32",
            )
        passed = (u < share(ratio)).view(size, len(left))
        accepted, first = passed.any(0), passed.int().argmax(0)
        tokens = token(path, context.head, last).view(size, len(left), -1)
        result[left[accepted]] = tokens[first, torch.arange(len(left), device=left.device)][accepted]
        left = left[~accepted]
        past, size = past + size, max(1, min(2 * size, _ROWS // max(1, len(left))))
    return result


TRIES = 100  # proposals for a token that is rejected


def published_round(method: CSpDSettings, context: ContinuousContext, drafter: Drafter) -> RoundResult:
    """Drafts to the next step that the target tests at, every k-th and the last, and commits all of it."""
    images, schedule = context.images, method.schedule(context)
    first = int(schedule.step(images.count)[0])  # nothing is ever dropped: all rows are at the same step
    stop = min(first - first % -method.k, len(schedule) - 1)
    groups = method.next_groups(context, stop - first + 1)
    drafts = draft(context, drafter, groups, "map")
    # The target sees what it knew at its last test: no draft of this round.
    states = context.states(images.known(), drafts.wanted, groups[-1].scale)
    images.add_forward()
    with context.watch("head"):
        noise = images.noise(drafts.wanted, "token", width(context.head))
        own = trace(context.head, states, noise, temperature=context.request.temperature)
        target, other = last_transition(own), last_transition(drafts.path)
        drafted = token(drafts.path, context.head, "map")
        ratio = log_ratio(drafted, target, other, tau=method.tau, derived=method.derived)
        accepted = images.uniforms(drafts.wanted, "accept").log() < ratio
        tokens = drafted
        if not bool(accepted.all()):
            tokens = drafted.clone()
            tokens[~accepted] = _replacements(method, context, drafts.wanted, accepted, target, other)
    images.commit(drafts.wanted, tokens, ratio.exp().clamp(max=1))
    stays = torch.zeros_like(drafts.wanted)
    stays[drafts.wanted] = accepted
    return RoundResult(
        drafted=download(drafts.wanted.sum(1)), accepted=download(stays.sum(1)), draft_forwards=drafts.forwards
    )


def _replacements(
    method: CSpDSettings,
    context: ContinuousContext,
    wanted: Tensor,
    accepted: Tensor,
    target: LastTransition,
    other: LastTransition,
) -> Tensor:
    """[rejected, d]: new tokens for the rejected ones among the `wanted`."""
    images, size = context.images, context.head.size
    if not method.reference:  # only those that need it are tried
        wanted = wanted.clone()
        wanted[wanted.clone()] = ~accepted
        target, other = target[~accepted], other[~accepted]
    normals = images.noise(wanted, "residual", TRIES * size).view(-1, TRIES, size).transpose(0, 1)
    uniforms = images.uniforms(wanted, "residual accept", TRIES).T
    proposals = target.mean + target.log_deviation.exp() * normals
    passed = share(log_ratio(proposals, target, other, derived=method.derived)) > uniforms
    if method.reference:
        return last_accepted(proposals, passed)[~accepted]
    return first_accepted(proposals, passed, target.mean)


@register("cspd", checked="golden/acceptance reference:samplers.continuous.test_cspd_published.plainly")
class CSpD(CSpDSettings):
    quality_grid: ClassVar[dict[str, tuple[object, ...]]] = {"steps": (64, 32, 16, 8)}  # those of `mar`

    @property
    def exact(self) -> str:
        return "distribution" if self.mode == "exact" and self.slack == 1 else "relaxed"

    @property
    def needed_model(self) -> str | None:
        return self.draft

    def check_model(self, model: ContinuousModel) -> None:
        if not self.draft:
            raise SpecError(
                "cspd: draft is missing; it names the draft model",
                hint="write cspd:draft=... with an embedded name, a folder or a hub id of a model of the same tokens",
            )
        if model.backbone.next_token and self.mode != "exact":
            raise SpecError(
                f"cspd: mode={self.mode} tests a draft without the drafts before it, which {model.name} needs",
                hint="use mode=exact",
            )
        _check_densities(model)

    def start(self, context: ContinuousContext) -> Drafter:
        if context.request.temperature <= 0:
            raise SpecError(
                f"cspd compares densities, and temperature={context.request.temperature} has none",
                hint="use a temperature above 0, or mar",
            )
        if context.request.draft_model is None:
            raise ModelError(
                "cspd: the request has no draft model", "load it and pass it as draft_model of the request"
            )
        _check_densities(context.request.draft_model)
        return Drafter(context.request.draft_model, context)

    def round(self, context: ContinuousContext, state: Drafter) -> RoundResult:
        # All rows are at the same step until something is drafted.
        if int(self.schedule(context).step(context.images.count).min()) < self.prefill_steps(context):
            self.sample_group(context)
            return RoundResult()
        return (exact_round if self.mode == "exact" else published_round)(self, context, state)

    def prefill_steps(self, context: ContinuousContext) -> int:
        """The number of steps that the target takes alone; the authors' code includes the step at the border."""
        share = len(self.schedule(context)) * self.prefill
        return math.floor(share) + 1 if self.mode == "reference" else math.ceil(share)


def _check_densities(model: ContinuousModel) -> None:
    if not model.head.stochastic:
        raise SpecError(
            f"cspd compares densities, and the head of {model.name} has none: its steps add no noise",
            hint="load the checkpoint with a noisy flow, or use sequential or seeded_jacobi",
        )


@dataclass(frozen=True, slots=True, eq=False)
class LastTransition:
    """The distribution of a path's last transition, and the deviations of earlier transitions."""

    mean: Tensor  # [N, d]
    log_deviation: Tensor  # [N, d]
    others: Tensor  # [N, d]: the sum of the log deviations of earlier transitions

    def __getitem__(self, which: Tensor) -> LastTransition:
        """The transitions of these tokens only."""
        return LastTransition(self.mean[which], self.log_deviation[which], self.others[which])


def last_transition(path: DenoisingPath) -> LastTransition:
    """The last transition of each path."""
    return LastTransition(path.means[-1], path.log_deviations[-1], path.log_deviations[:-1].double().sum(0))


def log_ratio(
    x: Tensor, target: LastTransition, draft: LastTransition, *, tau: float = 1.0, derived: bool = False
) -> Tensor:
    """[..., N] float64: the logarithm of the density ratio at x [..., N, d], as the authors compute it.

    ratio(x) = exp(S) prod s_q / prod s_p  exp(-|x - mu_p|^2 / 2 (tau s_p)^2) / exp(-|x - mu_q|^2 / 2 (tau s_q)^2)
    S = sum over the transitions before the last one of log s_p - log s_q;  derived: of log s_q - log s_p
    """
    others = (target.others.double() - draft.others.double()) * (-1 if derived else 1)
    narrow = draft.log_deviation.double() - target.log_deviation.double()
    return _kernel(x, target, tau) - _kernel(x, draft, tau) + (others + narrow).sum(-1)


def _kernel(x: Tensor, distribution: LastTransition, tau: float) -> Tensor:
    gap = (x.double() - distribution.mean.double()) * torch.exp(-distribution.log_deviation.double()) / tau
    return -0.5 * gap.square().sum(-1)


def share(log_ratio: Tensor) -> Tensor:
    """[...] float64: the share of the target's density above the draft's, 1 - exp(-log_ratio), at least 0."""
    return -torch.expm1(-log_ratio.clamp(min=0))


def first_accepted(proposals: Tensor, accepted: Tensor, otherwise: Tensor) -> Tensor:
    """[N, d]: each token's first proposal of [M, N, d] that is `accepted` [M, N], else its `otherwise` [N, d]."""
    first = accepted.int().argmax(0)
    chosen = proposals[first, torch.arange(len(otherwise), device=first.device)]
    return torch.where(accepted.any(0)[:, None], chosen, otherwise)


def last_accepted(proposals: Tensor, accepted: Tensor) -> Tensor:
    """[N, d], as published: tries end once every token has an accepted one; each token gets its last one, or zeros.

    Arguments as of `first_accepted`.
    """
    end = int((accepted.cumsum(0) > 0).all(1).logical_not().sum())  # the last try
    number = torch.arange(len(accepted), device=accepted.device)[:, None]
    last = torch.where(accepted & (number <= end), number, -1).amax(0)
    chosen = proposals[last.clamp(min=0), torch.arange(accepted.shape[1], device=last.device)]
    return torch.where(last[:, None] >= 0, chosen, torch.zeros_like(chosen))
