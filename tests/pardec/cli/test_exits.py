"""However a request ends, its memory is freed: the cache, the canvas, and the states of stages."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import pardec
from pardec.models.caches.kv_cache import KVCache
from pardec.models.model import LanguageModel
from pardec.samplers.masked.canvas import Canvas
from pardec.samplers.masked.loop import MaskedLoop

TEXTS = ["Tom has 3 cups.", "Sara buys 12 apples and finds 4 more apples."]
HELD = (KVCache, Canvas, MaskedLoop)
SPECS = ["sequential@dual", "threshold:tau=0.02+eos@prefix:refresh=2", "credit+fixed:steps=9+wino+prophet+eos@dual"]


class Watched:
    """Records all objects of the classes in HELD that requests create, and the forwards they run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[weakref.ref[Any]] = []
        self.forwards = 0
        for kind in HELD:
            self._watch(monkeypatch, kind)
        for name in ("forward", "run"):
            monkeypatch.setattr(LanguageModel, name, self._counted(getattr(LanguageModel, name)))

    def _watch(self, monkeypatch: pytest.MonkeyPatch, kind: type) -> None:
        real = kind.__init__  # type: ignore[misc]

        def noted(this: Any, *given: Any, **named: Any) -> None:
            real(this, *given, **named)
            self.made.append(weakref.ref(this))

        monkeypatch.setattr(kind, "__init__", noted)

    def _counted(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*given: Any, **named: Any) -> Any:
            self.forwards += 1
            return real(*given, **named)

        return counted

    def alive(self) -> list[str]:
        return [type(found).__name__ for found in (ref() for ref in self.made) if found is not None]


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    """Turns cyclic garbage collection off, so that objects in reference cycles count as not freed."""
    gc.collect()
    gc.disable()
    try:
        yield Watched(monkeypatch)
    finally:
        gc.enable()


def started(watched: Watched) -> bool:
    """Whether the request has created the objects whose release is tested."""
    return {"Canvas", "MaskedLoop", "KVCache"} <= set(watched.alive())


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("ending", ["length", "stop"])
def test_a_finished_request_leaves_its_result_only(
    model: pardec.Model, watched: Watched, spec: str, ending: str
) -> None:
    stop = [] if ending == "length" else list(range(5, 361))
    result = model.generate(TEXTS, sampler=spec, max_new_tokens=8, stop_ids=stop)
    assert set(result.finish) == ({"length"} if ending == "length" or "eos" not in spec else {"stop"})
    assert len(watched.made) >= 3
    assert watched.alive() == []


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("events", [0, 1, 2, 3, 5])
def test_a_consumer_may_leave_between_any_two_events(
    model: pardec.Model, watched: Watched, spec: str, events: int
) -> None:
    stream = model.stream(TEXTS, sampler=spec, max_new_tokens=8, stop_ids=[])
    told = [next(stream) for _ in range(events)]
    assert started(watched) or not events
    spent = watched.forwards
    stream.close()  # type: ignore[attr-defined]
    assert watched.alive() == []
    assert watched.forwards == spent
    assert list(stream) == []
    assert len(told) == events  # events may be kept: they hold nothing of the request


def test_dropping_the_stream_is_enough(model: pardec.Model, watched: Watched) -> None:
    for event in model.stream(TEXTS, max_new_tokens=8, sampler="sequential@dual"):
        if isinstance(event, pardec.Step) and event.number == 2:
            break
    assert watched.alive() == []
    assert watched.forwards == 3


def test_nothing_runs_ahead_of_the_consumer(model: pardec.Model, watched: Watched) -> None:
    for event in model.stream(TEXTS, max_new_tokens=4, sampler="sequential", stop_ids=[]):
        if isinstance(event, pardec.Step):
            assert watched.forwards == event.number + 1
    assert watched.forwards == 4


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("kind", [pardec.Started, pardec.Step, pardec.RowFinished, pardec.Finished])
def test_an_error_in_a_callback_ends_the_request_and_nothing_else(
    model: pardec.Model, watched: Watched, kind: type, error: type[BaseException]
) -> None:
    def fails(event: pardec.Event) -> None:
        if isinstance(event, kind):
            raise error("not this one")

    given: dict[str, Any] = {"max_new_tokens": 8, "sampler": "sequential@dual", "stop_ids": []}
    with pytest.raises(error, match="not this one") as caught:
        model.generate(TEXTS, callback=fails, **given)
    assert watched.alive() == []  # though the traceback is still there
    assert caught.tb is not None
    del caught
    after = model.generate(TEXTS, **given)
    assert after.tokens == model.generate(TEXTS, **given).tokens
    assert watched.alive() == []


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("at", [1, 2, 4])
def test_an_error_in_a_forward_frees_the_request(
    model: pardec.Model, watched: Watched, monkeypatch: pytest.MonkeyPatch, at: int, error: type[BaseException]
) -> None:
    given: dict[str, Any] = {"max_new_tokens": 8, "sampler": "sequential@dual", "stop_ids": []}
    real, calls = type(model.language_model.decoder).forward, []

    def stopped(*args: Any, **named: Any) -> Any:
        calls.append(1)
        if len(calls) == at:
            raise error("in the middle")
        return real(*args, **named)

    expected = model.generate(TEXTS, **given)
    with monkeypatch.context() as patched:
        patched.setattr(type(model.language_model.decoder), "forward", stopped)
        with pytest.raises((error, pardec.PardecError), match="in the middle|out of memory"):
            model.generate(TEXTS, **given)
    assert len(calls) == at
    assert watched.alive() == []  # the traceback held it, and is gone
    assert model.generate(TEXTS, **given).tokens == expected.tokens


def test_a_result_and_its_events_hold_no_request(model: pardec.Model, watched: Watched) -> None:
    events: list[pardec.Event] = []
    results = [
        model.generate(TEXTS, max_new_tokens=4, sampler=spec, callback=events.append, stop_ids=[]) for spec in SPECS
    ]
    assert len(results) == 3
    assert len(events) > 9
    assert watched.alive() == []


def test_a_refused_request_has_made_nothing(model: pardec.Model, watched: Watched) -> None:
    with pytest.raises(pardec.SpecError):
        model.stream(TEXTS, max_new_tokens=1000)
    assert model.stream(TEXTS, max_new_tokens=4) is not None  # checked, not begun
    assert watched.made == []
    assert watched.forwards == 0
