"""Runs the three loops with a clock on their parts; the loops' own code has no timing in it.

    backbone   the stack, without its head; for continuous tokens, the backbone
    head       final norm and matmul with the vocabulary; for continuous tokens, the denoising steps
    draft      forwards made while drafting: of another model, or of a part of this one
    decision   from logits to commit: drafting's own work, the method's stages, acceptance, commit
    host       the rest: plans, bookkeeping, events

A part's time is exclusive. On a GPU the clock synchronizes where a part begins and ends, so that a run with a clock
takes longer than one without: the two are separate runs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import numpy as np
from torch import Tensor

from pardec.models.caches.kv_cache import KVCache
from pardec.models.continuous.contracts import Backbone, ContinuousModel, Gaussian, Head, States
from pardec.models.errors import SpecError
from pardec.models.model import LanguageModel
from pardec.models.plan import Hidden, Plan
from pardec.models.stack import Stack
from pardec.samplers.continuous.loop import ContinuousLoop
from pardec.samplers.masked.cache.none import NoCache
from pardec.samplers.masked.contracts import Cache
from pardec.samplers.masked.loop import MaskedLoop
from pardec.samplers.speculative.loop import VerifyLoop

from ..drivers import driver_of
from ..requests.call import Call
from .clock import Clock, timed

PARTS = ("backbone", "head", "draft", "decision", "host")
_DRAFTING = "drafting"  # counted as decision, except for the forwards inside


@dataclass(frozen=True, slots=True)
class Fed:
    """The figures of one forward of the native stack that the floor is computed from."""

    rows: int
    width: int  # queries per row, padding included
    extent: int  # slots that each of them may read
    last: int  # queries of all rows that go through the whole last layer
    cached: bool


@dataclass(frozen=True, slots=True)
class Split:
    """One run with a clock."""

    seconds: dict[str, float]  # seconds of each of `PARTS`
    steps: int
    tokens: np.ndarray  # [B, L] int64, or continuous tokens [B, S, d] float32
    fed: tuple[Fed, ...]
    heads: int  # rows fed to the head
    readings: int  # number of clock readings


class TimedStack:
    """A stack whose forwards and head are timed; every other attribute is the stack's own."""

    def __init__(self, stack: Stack, clock: Clock, *, draft: bool = False) -> None:
        self._stack, self._clock, self._draft = stack, clock, draft
        self.fed: list[Fed] = []
        self.heads = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stack, name)

    def __call__(self, plan: Plan, cache: KVCache | None = None) -> Hidden:
        hidden: Hidden = self._clock.wrap(self._stack, self._part("backbone"))(plan, cache)
        if not self._is_drafting():
            extent = cache.extent(plan) if cache is not None else plan.uniform or plan.width
            last = plan.want.numel() if hidden.narrowed else plan.tokens.numel()
            self.fed.append(Fed(plan.batch, plan.width, extent, last, cache is not None))
        head = self._clock.wrap(hidden.head, self._part("head"))

        def count_rows(states: Tensor) -> Tensor:
            self.heads += 0 if self._is_drafting() else len(states)
            return cast("Tensor", head(states))

        return replace(hidden, head=count_rows)

    def _is_drafting(self) -> bool:
        return self._draft or self._clock.inside(_DRAFTING)

    def _part(self, part: str) -> Callable[[], str]:
        return lambda: "draft" if self._is_drafting() else part


class TimedBackbone:
    """The backbone of a model with continuous tokens, timed."""

    def __init__(self, backbone: Backbone, clock: Clock) -> None:
        self._backbone, self._clock = backbone, clock
        self._states = clock.wrap(backbone.states, "backbone")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backbone, name)

    def start(self, *args: Any, **options: Any) -> TimedBackbone:
        return TimedBackbone(self._clock.wrap(self._backbone.start, "backbone")(*args, **options), self._clock)

    def states(self, *args: Any, **options: Any) -> States:
        return cast("States", self._states(*args, **options))


class TimedHead:
    """The head of a model with continuous tokens, timed."""

    def __init__(self, head: Head, clock: Clock) -> None:
        self._head, self._clock = head, clock
        self._distribution = clock.wrap(head.distribution, "head")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._head, name)

    def distribution(self, x: Tensor, index: int | Tensor, states: States) -> Gaussian:
        return cast("Gaussian", self._distribution(x, index, states))

    def respaced(self, steps: int) -> TimedHead:
        return TimedHead(self._head.respaced(steps), self._clock)


def split(network: Any, call: Call) -> Split:
    """Decodes once with a clock. Raises SpecError for a sampler that decodes the request twice."""
    clock, decode = Clock(network.device), TIMED[driver_of(network).family]
    stack = TimedStack(network.decoder, clock) if isinstance(network, LanguageModel) else None
    timed_network = network if stack is None else replace(network, decoder=stack)
    (steps, tokens), total = timed(partial(decode, timed_network, call, clock), network.device)
    times = clock.seconds
    times["decision"] = times.get("decision", 0.0) + times.pop(_DRAFTING, 0.0)
    seconds = {part: times.get(part, 0.0) for part in PARTS} | {"host": total - sum(times.values())}
    fed, heads = (tuple(stack.fed), stack.heads) if stack else ((), 0)
    return Split(seconds, steps, tokens, fed, heads, clock.readings)


def uncached(network: LanguageModel, call: Call) -> tuple[float, tuple[Fed, ...], int]:
    """Seconds of a masked request's first step without a cache, its inputs, and the number of rows fed to the head."""
    stack = TimedStack(network.decoder, Clock(network.device))
    sampler = replace(call.sampler, cache=cast("Cache", NoCache()))
    loop = MaskedLoop(replace(network, decoder=stack), sampler, call.request)
    _, seconds = timed(loop.step, network.device)
    return seconds, tuple(stack.fed), stack.heads


def _masked(model: LanguageModel, call: Call, clock: Clock) -> tuple[int, np.ndarray]:
    sampler = call.sampler
    if sampler.select.reference_sampler is not None:
        raise SpecError(f"{sampler.spec} decodes twice, and only one decode can be timed", hint="time another sampler")
    loop: Any = MaskedLoop(model, sampler, call.request)
    loop.decide = clock.wrap(loop.decide, "decision")
    loop.canvas.commit = clock.wrap(loop.canvas.commit, "decision")
    deque(loop.retire(), maxlen=0)
    while len(loop.canvas):
        loop.step()
        deque(loop.retire(), maxlen=0)
    return len(loop.recorder.history), loop.recorder.finished().tokens


def _verify(model: LanguageModel, call: Call, clock: Clock) -> tuple[int, np.ndarray]:
    sampler = call.sampler
    draft = clock.stage(sampler.draft, ("propose", "observe"), _DRAFTING)
    sampler = replace(sampler, draft=draft, accept=clock.stage(sampler.accept, ("accept",), "decision"))
    loop: Any = VerifyLoop(model, sampler, call.request)
    for owner, name in ((loop.processing, "of_target"), (loop, "commit"), (loop.forward, "keep_path")):
        setattr(owner, name, clock.wrap(getattr(owner, name), "decision"))
    try:
        deque(loop.retire(), maxlen=0)
        while len(loop.text):
            loop.round()
            if len(loop.forward.fed) == 1:
                _clock_drafters(loop, clock)
            deque(loop.retire(), maxlen=0)
        return len(loop.forward.fed), loop.finished().tokens
    finally:
        loop.close()


def _clock_drafters(loop: VerifyLoop, clock: Clock) -> None:
    """Adds clocks to models that drafters loaded in the first round, before they run on drafts."""
    for state in loop.memory.values():
        model = getattr(state, "model", None)
        if isinstance(model, LanguageModel) and model is not loop.model and not isinstance(model.decoder, TimedStack):
            state.model = replace(model, decoder=TimedStack(model.decoder, clock, draft=True))


def _continuous(network: ContinuousModel, call: Call, clock: Clock) -> tuple[int, np.ndarray]:
    backbone = cast("Backbone", TimedBackbone(network.backbone, clock))
    timed_network = replace(network, backbone=backbone, head=TimedHead(network.head, clock))
    loop = ContinuousLoop(timed_network, call.sampler, call.request)
    commit: Any = clock.wrap(loop.images.commit, "decision")
    loop.images.commit = commit  # type: ignore[method-assign]
    while len(loop.images):
        loop.round()
        deque(loop.retire(), maxlen=0)
    latents = loop.finished().latents
    assert latents is not None, "tokens are continuous"
    return loop.rounds, latents


# Of each family whose decodes are timed in parts: the loop, which returns its steps and its tokens or vectors.
TIMED: Mapping[str, Callable[[Any, Call, Clock], tuple[int, np.ndarray]]] = {
    "masked": _masked,
    "ar": _verify,
    "continuous": _continuous,
}
