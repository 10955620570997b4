"""A round of `cspd` as its authors publish it: steps of the draft, and one call of the target that tests them all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...ops.denoising_paths import token, trace, width
from ...ops.density_ratios import Ending, ending, first_taken, last_taken, log_ratio, share
from ..contracts import Easel, Round
from ._drafting import Drafter, draft

if TYPE_CHECKING:
    from .cspd import CSpD

TRIES = 100  # proposals for a token that is rejected


def published_round(method: CSpD, easel: Easel, drafter: Drafter) -> Round:
    """Drafts to the next step that the target tests at, every k-th and the last, and commits all of it."""
    painting, groups = easel.painting, method.groups(easel)
    first = int(groups.step(painting.done)[0])  # nothing is ever dropped: all rows are at the same step
    stop = min(first - first % -method.k, len(groups) - 1)
    ahead = method.ahead(easel, stop - first + 1)
    drafts = draft(easel, drafter, ahead, "map")
    # The target sees what it knew at its last test: no draft of this round.
    states = easel.states(painting.known(), drafts.wanted, ahead[-1].scale)
    painting.count()
    with easel.watch("head"):
        noise = painting.noise(drafts.wanted, "token", width(easel.head))
        own = trace(easel.head, states, noise, temperature=easel.request.temperature)
        target, other = ending(own), ending(drafts.path)
        drafted = token(drafts.path, easel.head, "map")
        ratio = log_ratio(drafted, target, other, tau=method.tau, derived=method.derived)
        accepted = painting.uniforms(drafts.wanted, "accept").log() < ratio
        made = drafted
        if not bool(accepted.all()):
            made = drafted.clone()
            made[~accepted] = _replaced(method, easel, drafts.wanted, accepted, target, other)
    painting.commit(drafts.wanted, made, ratio.exp().clamp(max=1))
    stood = torch.zeros_like(drafts.wanted)
    stood[drafts.wanted] = accepted
    return Round(
        drafted=drafts.wanted.sum(1).cpu().numpy(),
        accepted=stood.sum(1).cpu().numpy(),
        draft_forwards=drafts.forwards,
    )


def _replaced(method: CSpD, easel: Easel, wanted: Tensor, accepted: Tensor, target: Ending, other: Ending) -> Tensor:
    """[rejected, d]: what stands in for the rejected among the `wanted` tokens."""
    painting, size = easel.painting, easel.head.size
    if not method.reference:  # only those that need it are tried
        wanted = wanted.clone()
        wanted[wanted.clone()] = ~accepted
        target, other = (_of(distribution, ~accepted) for distribution in (target, other))
    normals = painting.noise(wanted, "residual", TRIES * size).view(-1, TRIES, size).transpose(0, 1)
    uniforms = painting.uniforms(wanted, "residual accept", TRIES).T
    proposals = target.mean + target.log_deviation.exp() * normals
    taken = share(log_ratio(proposals, target, other, derived=method.derived)) > uniforms
    if method.reference:
        return last_taken(proposals, taken)[~accepted]
    return first_taken(proposals, taken, target.mean)


def _of(distribution: Ending, which: Tensor) -> Ending:
    return Ending(distribution.mean[which], distribution.log_deviation[which], distribution.others[which])
