"""A round of `cspd` that keeps the target's law: speculative sampling on whole denoising paths."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pardec.models.continuous.contracts import States
from pardec.models.errors import ModelError

from ...ops.denoising_paths import Last, along, log_density, token, trace, width
from ...ops.density_ratios import share
from ..contracts import Easel, Round
from ._ahead import contexts
from ._drafting import Drafter, draft

if TYPE_CHECKING:
    from .cspd import CSpD

_ROWS = 256  # tries that are made at once, where there are not more tokens to try for


def exact_round(method: CSpD, easel: Easel, drafter: Drafter) -> Round:
    """Drafts k groups, tests each from what is before it, and commits those before the first rejection and its own."""
    painting, temperature, last = easel.painting, easel.request.temperature, method.ending
    groups = method.ahead(easel, method.k)
    drafts = draft(easel, drafter, groups, last)
    states, rows = contexts(easel, groups, drafts.latents)
    painting.count()
    with easel.watch("head"):
        # Where the draft is the target, the two laws are one: nothing but rounding could reject.
        own = drafts.path if drafter.same else along(easel.head, states, drafts.path, temperature=temperature)
        ratio = log_density(own, last) - log_density(drafts.path, last)
        passed = painting.uniforms(drafts.wanted, "accept").log() < ratio + math.log(method.slack)
        made = token(own, easel.head, last)
        accepted = torch.zeros_like(drafts.wanted)
        accepted[drafts.wanted] = passed
        stays, again, dropped = settled(accepted, drafts.number, len(groups))
        if bool(again.any()):
            made = made.clone()
            which = again[drafts.wanted]
            made[which] = _residual(easel, drafter, again, states.take(which), drafts.states.take(which), last)
    kept = stays | again
    inside = kept[drafts.wanted]
    painting.commit(kept, made[inside], ratio[inside].exp().clamp(max=1))
    painting.visits += dropped  # what is drafted there next time has other noise
    return Round(
        drafted=kept.sum(1).cpu().numpy(),
        accepted=stays.sum(1).cpu().numpy(),
        draft_forwards=drafts.forwards,
        contexts=rows,
    )


def settled(accepted: Tensor, number: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """What becomes of drafts, [n, S] bool each: those that stand, those that are drawn again, those that are dropped.

    `accepted` [n, S] says what passed, and `number` [n, S] the group of each draft, `count` where there is none.
    The first group with a rejection is the last one of which anything is kept.
    """
    rejected = (number < count) & ~accepted
    first = torch.where(rejected, number, count).amin(1, keepdim=True)
    return accepted & (number <= first), rejected & (number == first), (number < count) & (number > first)


def _residual(easel: Easel, drafter: Drafter, again: Tensor, target: States, other: States, last: Last) -> Tensor:
    """[m, d]: tokens drawn from what the target's law of paths has over the draft's, for those that `again` marks.

    Target paths are tried until one stands; tries are numbered, so that which one it is depends on no other token.
    """
    painting, temperature = easel.painting, easel.request.temperature
    made = torch.empty(len(target), easel.head.size, device=painting.device)
    left = torch.arange(len(made), device=painting.device)
    done, size = 0, 1  # tries made, and tries that come next
    while len(left):
        open_ = torch.zeros_like(again)
        open_[again] = torch.isin(torch.arange(len(made), device=left.device), left)
        tries = range(done, done + size)
        noise = torch.cat([painting.noise(open_, "residual", width(easel.head), again=number) for number in tries])
        u = torch.cat([painting.uniforms(open_, "residual accept", again=number) for number in tries])
        which = left.repeat(size)
        path = trace(easel.head, target.take(which), noise, temperature=temperature)
        drafts = along(drafter.head, other.take(which), path, temperature=temperature)
        ratio = log_density(path, last) - log_density(drafts, last)
        if bool(ratio.isnan().any()):  # none would ever stand
            raise ModelError(
                f"{easel.model.name} or {drafter.model.name} says laws that are not numbers",
                hint="load both with dtype=float32",
            )
        stands = (u < share(ratio)).view(size, len(left))
        found, first = stands.any(0), stands.int().argmax(0)
        tokens = token(path, easel.head, last).view(size, len(left), -1)
        made[left[found]] = tokens[first, torch.arange(len(left), device=left.device)][found]
        left = left[~found]
        done, size = done + size, max(1, min(2 * size, _ROWS // max(1, len(left))))
    return made
