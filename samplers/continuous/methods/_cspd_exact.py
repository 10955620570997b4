"""A round of `cspd` that keeps the target's distribution: speculative sampling on whole denoising paths."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pardec.models.continuous.contracts import States
from pardec.models.errors import ModelError

from ...ops.denoising_paths import Last, log_density, rescore, token, trace, width
from ...ops.density_ratios import share
from ..contracts import ContinuousContext, RoundResult
from ._ahead import group_states
from ._cspd_settings import CSpDSettings
from ._drafting import Drafter, draft

_ROWS = 256  # tries at once, unless there are more tokens to try for
_TRIES = 2**16  # for a token: right densities need more once in 10^5 tokens at worst


def exact_round(method: CSpDSettings, context: ContinuousContext, drafter: Drafter) -> RoundResult:
    """Drafts k groups, tests each from what precedes it, and commits all up to the first group with a rejection."""
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
            tokens[which] = _residual(context, drafter, again, states.take(which), drafts.states.take(which), last)
    final = stays | again
    inside = final[drafts.wanted]
    images.commit(final, tokens[inside], ratio[inside].exp().clamp(max=1))
    images.visits += dropped  # the next draft there has other noise
    return RoundResult(
        drafted=final.sum(1).cpu().numpy(),
        accepted=stays.sum(1).cpu().numpy(),
        draft_forwards=drafts.forwards,
        contexts=rows,
    )


def split_drafts(accepted: Tensor, number: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The drafts that stay, those that are sampled again, and those that are dropped; [n, S] bool each.

    `accepted` [n, S] marks those that passed; `number` [n, S] is the group of each draft, `count` where there is none.
    Nothing stays of groups behind the first one with a rejection.
    """
    rejected = (number < count) & ~accepted
    first = torch.where(rejected, number, count).amin(1, keepdim=True)
    return accepted & (number <= first), rejected & (number == first), (number < count) & (number > first)


def _residual(
    context: ContinuousContext, drafter: Drafter, again: Tensor, target: States, other: States, last: Last
) -> Tensor:
    """[m, d]: tokens for those that `again` marks, sampled from the residual max(0, p - q) over paths.

    Target paths are tried until one is accepted; tries are numbered, so that which one depends on no other token.
    """
    images, temperature = context.images, context.request.temperature
    result = torch.empty(len(target), context.head.size, device=images.device)
    left = torch.arange(len(result), device=images.device)
    past, size = 0, 1  # tries so far, and tries that come next
    while len(left):
        if past >= _TRIES:
            raise ModelError(
                f"cspd: none of {past} draws of {context.model.name} passed for a token of {drafter.model.name}: the "
                "densities are not those of what is drawn",
                hint="load both models with dtype=float32, or decode with mar",
            )
        open_ = torch.zeros_like(again)
        open_[again] = torch.isin(torch.arange(len(result), device=left.device), left)
        tries = range(past, past + size)
        noise = torch.cat([images.noise(open_, "residual", width(context.head), again=number) for number in tries])
        u = torch.cat([images.uniforms(open_, "residual accept", again=number) for number in tries])
        which = left.repeat(size)
        path = trace(context.head, target.take(which), noise, temperature=temperature)
        drafts = rescore(drafter.head, other.take(which), path, temperature=temperature)
        ratio = log_density(path, last) - log_density(drafts, last)
        if bool(ratio.isnan().any()):  # none would ever be accepted
            raise ModelError(
                f"{context.model.name} or {drafter.model.name} gives densities that are not numbers",
                hint="load both with dtype=float32",
            )
        passed = (u < share(ratio)).view(size, len(left))
        accepted, first = passed.any(0), passed.int().argmax(0)
        tokens = token(path, context.head, last).view(size, len(left), -1)
        result[left[accepted]] = tokens[first, torch.arange(len(left), device=left.device)][accepted]
        left = left[~accepted]
        past, size = past + size, max(1, min(2 * size, _ROWS // max(1, len(left))))
    return result
