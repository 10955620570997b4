"""A round of `cspd` as its authors publish it: steps of the draft, and one call of the target that tests them all."""

from __future__ import annotations

import torch
from torch import Tensor

from ...ops.denoising_paths import token, trace, width
from ...ops.density_ratios import LastTransition, first_accepted, last_accepted, last_transition, log_ratio, share
from ..contracts import ContinuousContext, RoundResult
from ._cspd_settings import CSpDSettings
from ._drafting import Drafter, draft

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
        drafted=drafts.wanted.sum(1).cpu().numpy(), accepted=stays.sum(1).cpu().numpy(), draft_forwards=drafts.forwards
    )


def _replacements(
    method: CSpDSettings,
    context: ContinuousContext,
    wanted: Tensor,
    accepted: Tensor,
    target: LastTransition,
    other: LastTransition,
) -> Tensor:
    """[rejected, d]: tokens in place of the rejected ones among the `wanted`."""
    images, size = context.images, context.head.size
    if not method.reference:  # only those that need it are tried
        wanted = wanted.clone()
        wanted[wanted.clone()] = ~accepted
        target, other = target.take(~accepted), other.take(~accepted)
    normals = images.noise(wanted, "residual", TRIES * size).view(-1, TRIES, size).transpose(0, 1)
    uniforms = images.uniforms(wanted, "residual accept", TRIES).T
    proposals = target.mean + target.log_deviation.exp() * normals
    passed = share(log_ratio(proposals, target, other, derived=method.derived)) > uniforms
    if method.reference:
        return last_accepted(proposals, passed)[~accepted]
    return first_accepted(proposals, passed, target.mean)
