"""diffusers' discrete schedulers as select policies of the masked loop.

The scheduler decides which open positions are committed; pardec draws the candidates, so that draws are keyed to the
row's seed and a row gives the same alone and in a batch. Rows may be at different steps of their blocks, and `step`
takes one step index, so it is called once for each index present.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from diffusers import BlockRefinementScheduler, EntropyBoundScheduler
from torch import Tensor

from pardec.models.errors import SpecError
from pardec.samplers import registry
from pardec.samplers.masked.contracts import Canvas, Evidence, Logits, MaskedSampler, Proposal, Select
from pardec.samplers.ops.distribution import DenseDistribution, Distribution
from pardec.samplers.spec import Part, Spec, parse


def policy(
    scheduler: Any, rest: str = "eos", *, steps: int | None = None, threshold: float | None = None
) -> MaskedSampler:
    """A sampler whose select is `scheduler`, for `Model.generate(sampler=...)`.

    Args:
        scheduler: diffusers' BlockRefinementScheduler or EntropyBoundScheduler; requests do not modify it.
        rest: the other parts, as a spec without a select: "eos@dual", "credit+eos".
        steps: planned steps per block; None takes the scheduler's.
        threshold: overrides the threshold in a BlockRefinementScheduler's config.

    EntropyBoundScheduler anneals the logits; at temperature 0 the candidates are still the likeliest tokens, at
    temperature 1 they are drawn from the annealed distribution, as in the scheduler. Its noise tokens have no meaning
    for a masked model and are not used.

    Raises:
        SpecError: for another class, if `rest` names a select, or if editing is on and `rest` has no `edit`.
    """
    spec = parse(rest)
    name = type(scheduler).__name__
    if not isinstance(scheduler, (BlockRefinementScheduler, EntropyBoundScheduler)):
        raise SpecError(
            f"{name} is not a scheduler for masked models",
            hint="use a BlockRefinementScheduler or an EntropyBoundScheduler",
        )
    nested = getattr(scheduler.config, "sampler", None)
    if nested is not None:
        raise SpecError(f"this {name} runs the sampler {nested!r}", hint=f"pass the spec itself, sampler={nested!r}")
    if any(registry.find(part.name).stage == "select" for part in spec.parts):
        raise SpecError(f"{rest!r} names a select method, and {name} replaces it", hint="leave the select out of rest")
    steps = int(scheduler.num_inference_steps) if steps is None else steps
    if isinstance(scheduler, BlockRefinementScheduler):
        editing = scheduler.config.editing_threshold
        if editing is not None and editing > 0 and all(part.name != "edit" for part in spec.parts):
            raise SpecError(
                f"this {name} edits tokens (editing_threshold={editing}), and rest has no method that does",
                hint=f'name it in rest, policy(scheduler, "edit:tau={editing}+eos"), or set editing_threshold=None',
            )
        bound = float(scheduler.config.threshold if threshold is None else threshold)
        select: Any = Refinement(scheduler, steps, bound)
        parameters = {"threshold": bound, "steps": steps}
        logits: tuple[Any, ...] = ()
    else:
        if threshold is not None:
            raise SpecError(f"{name} takes no threshold, got {threshold}", hint="set its entropy_bound")
        hot, cold = float(scheduler.config.t_max), float(scheduler.config.t_min)
        select = Bound(with_config(scheduler, t_max=1.0, t_min=1.0))
        logits = (Anneal(hot, cold, steps),)
        bound = float(scheduler.config.entropy_bound)
        parameters = {"entropy_bound": bound, "t_max": hot, "t_min": cold, "steps": steps}
    return _sampler(spec, Part(name, tuple((key, str(value)) for key, value in parameters.items())), select, logits)


def with_config(scheduler: Any, **values: Any) -> Any:
    """A scheduler like this one with other values in its config."""
    config = {name: value for name, value in scheduler.config.items() if not name.startswith("_")}
    return type(scheduler).from_config({**config, **values})


def _sampler(spec: Spec, select_part: Part, select: Any, logits: tuple[Any, ...]) -> MaskedSampler:
    """Resolves `spec` with a placeholder select stage, then replaces the placeholder by this one."""
    parts = spec.parts
    if all(registry.find(part.name).stage != "propose" for part in parts):
        parts = (Part("confidence", (("of", "filtered"),)), *parts)  # the score that the schedulers use
    stand_in = Part("sequential")
    base = registry.resolve(Spec((*parts, stand_in), spec.cache))
    full_spec = Spec(
        tuple(select_part if part.name == stand_in.name else part for part in base.spec.parts), base.spec.cache
    )
    return replace(base, spec=full_spec, exact="relaxed", select=select, logits=(*base.logits, *logits))


# --- the policies ---


@dataclass
class Clock:
    """The step at which each row entered its active block; [B]."""

    start: np.ndarray

    def at(self, canvas: Canvas, steps: int) -> np.ndarray:
        """The step of each row in its block, at most the last; [B]."""
        self.start = np.where(canvas.block_started, canvas.step, self.start)
        at: np.ndarray = np.minimum(canvas.step - self.start, steps - 1)
        return at


@dataclass
class RunningScheduler(Clock):
    """The clock with the request's own copy of the scheduler."""

    scheduler: Any


def _group_by_step(at: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Each step index that occurs, with the rows at this step."""
    for step in np.unique(at):
        yield int(step), np.flatnonzero(at == step)


def _start(canvas: Canvas) -> np.ndarray:
    return np.zeros(len(canvas), dtype=np.int64)


@dataclass(frozen=True)
class Refinement(Select):
    """BlockRefinementScheduler: all candidates above the threshold, at least an even share of the block per step."""

    scheduler: Any
    steps: int
    threshold: float

    def start(self, canvas: Canvas) -> RunningScheduler:
        scheduler = copy.copy(self.scheduler)
        scheduler.set_timesteps(self.steps, block_length=canvas.block_length)
        return RunningScheduler(_start(canvas), scheduler)

    def select(self, proposal: Proposal, canvas: Canvas, state: RunningScheduler) -> Tensor:
        chosen = torch.zeros_like(proposal.eligible)
        for step, rows in _group_by_step(state.at(canvas, self.steps)):
            row = torch.from_numpy(rows).to(chosen.device)
            eligible, tokens = proposal.eligible[row], proposal.tokens[row]
            # The scheduler would draw candidates from the logits; pass it the ones that exist already.
            state.scheduler._sample_from_logits = lambda *_, candidates=(tokens, proposal.score[row]), **__: candidates
            out = state.scheduler.step(
                proposal.evidence.logits[row],
                step,
                torch.where(eligible, canvas.mask_id, -1),
                mask_token_id=canvas.mask_id,
                threshold=self.threshold,
                editing_threshold=0.0,
            )
            chosen[row] = out.transfer_index
        return chosen


@dataclass(frozen=True)
class Anneal(Logits):
    """EntropyBoundScheduler's temperature, from `hot` at a block's first step to nearly `cold` at its last."""

    hot: float
    cold: float
    steps: int

    def start(self, canvas: Canvas) -> Clock:
        return Clock(_start(canvas))

    def logits(self, evidence: Evidence, canvas: Canvas, state: Clock) -> Distribution:
        left = (self.steps - state.at(canvas, self.steps)) / self.steps
        temperature = torch.from_numpy(self.cold + (self.hot - self.cold) * left)
        return DenseDistribution(evidence.logits / temperature.to(evidence.logits)[:, None, None])


@dataclass(frozen=True)
class Bound(Select):
    """EntropyBoundScheduler on annealed logits: the most confident positions within its entropy bound."""

    scheduler: Any  # its temperature is 1 throughout

    def select(self, proposal: Proposal, canvas: Canvas, state: None) -> Tensor:
        logits = proposal.evidence.logits
        # A one-hot distribution has entropy 0: it comes first in the order and adds nothing to the sums.
        certain = torch.full_like(logits[0, 0], -torch.inf)
        certain[0] = 0.0
        logits = torch.where(proposal.eligible[..., None], logits, certain)
        unused = torch.Generator(logits.device).manual_seed(0)  # its draws are ignored; do not use the global generator
        return torch.as_tensor(self.scheduler.step(logits, 0, proposal.tokens, generator=unused).accepted_index)
