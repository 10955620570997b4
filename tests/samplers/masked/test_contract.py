"""The contract of every registered method: new methods are tested without a change here."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest

from pardec.samplers import registry
from pardec.samplers.cards import MASKED
from pardec.samplers.events import Finished, Step
from pardec.samplers.masked.compatibility import SINGLE
from pardec.samplers.masked.contracts import MaskedSampler
from pardec.samplers.masked.loop import MaskedLoop, decode
from pardec.samplers.trace import PROMPT, UNCOMMITTED
from pardec.samplers.traits import Trait
from tests.grids import pairwise, thinned
from tests.samplers.toys import (
    BLOCK,
    EOS,
    EVERY_FAMILY,
    FAMILIES,
    MASK,
    PAD,
    altered,
    biased,
    events,
    fill,
    names,
    prompts,
    request,
    resolved,
    run,
    same,
    toy,
)

LENGTHS, NEW = (3, 6, 1, 5), (7, 6, 9, 2)
LAWS: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 0.8, "top_p": 0.9, "top_k": 8},
    {"temperature": 1.2, "cfg": 1.5},
)
LOOKS = 16  # most forwards a block that a revise stage costs by its defaults (`edit` looks so often at a complete one)


def looks_behind(sampler: MaskedSampler) -> bool:
    """Whether the sampler needs a model that attends to masks after the block."""
    return sampler.query is not None or bool(sampler.cutting) or sampler.select.drafts_above is not None


@cache
def fitting(spec: str) -> list[str]:
    """The families that its cache works with."""
    sampler = resolved(spec)
    needs = sampler.cache.attention
    if looks_behind(sampler):
        one = "bidirectional"
        return [name for name, (_, attention) in FAMILIES.items() if attention == one and needs in (None, one)]
    if Trait.LEAVE_ONE_OUT in sampler.traits:
        return [name for name, (_, attention) in FAMILIES.items() if needs in (None, attention)]
    if needs is not None:
        return [name for name, (_, attention) in EVERY_FAMILY.items() if attention == needs]
    return [name for name, (_, attention) in EVERY_FAMILY.items() if attention != "causal-prefix"]


def specs() -> list[str]:
    """Every select with every cache, and every other stage with every cache, without refused combinations."""
    selects = [*names("select"), "fixed:order=random", "fixed:steps=3"]
    found = [f"{select}@{cache}" for select, cache in product(selects, names("cache"))]
    found += [f"{propose}+fixed:steps=5@{cache}" for propose, cache in product(names("propose"), names("cache"))]
    others = [name for stage in MASKED if stage not in SINGLE or stage == "query" for name in names(stage)]
    found += [f"{name}+threshold:tau=0.4@{cache}" for name, cache in product(others, names("cache"))]
    return [spec for spec in found if resolved(spec) and fitting(spec)]


SPECS = specs()
HEADS: dict[str, list[str]] = {}  # the caches that go with each, by what stands before them
for _spec in SPECS:
    HEADS.setdefault(_spec.split("@")[0], []).append(_spec.split("@")[1])


STAGES = {card.name: card.stage for card in registry.cards() if card.family == "masked"}


def axes(spec: str, temperature: float) -> tuple[Any, ...]:
    """Axes: every method occurs, every cache at both temperatures, and every cache with a method of each stage."""
    head, cache = spec.split("@")
    stage = STAGES[head.split("+")[0].split(":")[0]]
    return head, (cache, temperature), (stage, cache)


def each_alone(spec: str) -> bool:
    """Whether a case runs by default: every method with its first cache, and every cache with `threshold`."""
    head, cache = spec.split("@")
    return cache == HEADS[head][0] or head == "threshold"


def drawn(spec: str, count: int) -> int:
    """A number below `count` that depends on the spec alone."""
    return sum(map(ord, spec)) % count


def family_of(spec: str) -> str:
    """A family for a spec."""
    families = fitting(spec)
    return families[drawn(spec, len(families))]


def revises(spec: str) -> bool:
    """Whether a forward may commit nothing: a row is revised, or grows."""
    sampler = resolved(spec)
    return bool(sampler.revising) or sampler.growing is not None


def check(got: Finished, mask: int = MASK, *, may_stop: bool = False, revised: bool = False) -> None:
    """Asserts that the row ended with no open position or mask id, kept given tokens, and took few enough forwards."""
    trace = got.trace
    for row, length in enumerate(trace.lengths):
        when, tokens = trace.commit_step[row, :length], got.tokens[row, :length]
        committed = int((when >= 0).sum())
        assert got.nfe[row] <= committed + (LOOKS * -(-int(length) // BLOCK) if revised else 0)
        assert got.nfe[row] == len(trace.fed[row])
        assert not (tokens == mask).any()
        if not revised:
            assert set(when[when >= 0].tolist()) == set(range(got.nfe[row]))  # no forward was idle
        if (when == UNCOMMITTED).any():
            assert may_stop
            assert got.reasons[row] == "stop"
            assert (tokens[when == UNCOMMITTED] == PAD).all()


@pytest.mark.parametrize(("spec", "temperature"), pairwise(product(SPECS, [0.0, 0.7]), axes, 1))
def test_every_composition_keeps_the_contract_in_a_ragged_batch(spec: str, temperature: float) -> None:
    """Rows end, have no mask, keep commits unless a stage revises, and are the same alone and in a ragged batch."""
    model, given = toy(family_of(spec), sharp=1.2), prompts(LENGTHS)
    distribution = {**LAWS[drawn(spec, 3)], "temperature": temperature, "stop_ids": (EOS,)}
    canvases = [[*prompt, *[MASK] * new] for prompt, new in zip(given, NEW, strict=True)]
    told = events(
        model,
        spec,
        request(canvases, LENGTHS, absolute=model.decoding_config.attention == "block-causal", **distribution),
    )
    whole = told[-1]
    assert isinstance(whole, Finished)
    check(whole, may_stop=any(name in spec for name in ("eos", "adaptive_length", "grow")), revised=revises(spec))
    for row, prompt in enumerate(given):
        assert whole.tokens[row, : len(prompt)].tolist() == prompt
    for event in told:
        if isinstance(event, Step) and not revises(spec):
            assert event.revised is None
            for at, row in enumerate(event.rows):
                kept = ~event.open[at]
                assert (event.tokens[at][kept] == whole.tokens[row][kept]).all()
    row = drawn(spec, 4)
    assert same(fill(model, spec, [given[row]], NEW[row], seeds=[100 + row], **distribution), 0, whole, row)


class Exit(Exception):
    """An exception of the consumer."""


@pytest.mark.parametrize("spec", thinned(((spec,) for spec in SPECS), each_alone))
def test_nothing_of_a_request_outlives_it_however_it_ends(spec: str) -> None:
    """End tokens, the budget, a consumer that stops, an error in a forward: canvas, cache and states are freed."""
    model, given = toy(family_of(spec), sharp=1.2), prompts((3, 5))
    forwards, seen = 0, list[weakref.ref[Any]]()

    def break_at_third(logits: Any) -> Any:
        nonlocal forwards
        forwards += 1
        if forwards == 3:
            raise Exit
        return logits

    def watch(loop: MaskedLoop) -> None:
        states = [state for state in loop.memory.values() if type(state).__weakrefoffset__]
        seen.extend(map(weakref.ref, (loop.canvas, loop.forward, *states)))

    absolute = model.decoding_config.attention == "block-causal"
    for way in ("end token", "budget", "stop", "error"):
        chosen = {"end token": biased(model, EOS, 20.0), "error": altered(model, break_at_third)}.get(way, model)
        canvases = [[*prompt, *[MASK] * 6] for prompt in given]
        asked = request(canvases, (3, 5), absolute=absolute, stop_ids=(EOS,) if way == "end token" else ())
        stops = "+eos" if way == "end token" and "eos" not in spec else ""
        sampler = registry.resolve(spec.replace("@", f"{stops}@"))
        forwards = 0
        with watched(watch), suppress(Exit):
            for event in decode(chosen, sampler, asked):
                if way == "stop" and isinstance(event, Step):
                    break
        gc.collect()
        assert len(seen) >= 2
        assert not (alive := [ref() for ref in seen if ref() is not None]), f"after {way}: {alive}"
        seen.clear()


@contextmanager
def watched(watch: Callable[[MaskedLoop], None]) -> Iterator[None]:
    """Calls `watch` with every loop that is created."""
    made = MaskedLoop.__init__

    def noted(self: MaskedLoop, *args: Any) -> None:
        made(self, *args)
        watch(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MaskedLoop, "__init__", noted)
        yield


@pytest.mark.parametrize("count", range(2, 9))
@pytest.mark.parametrize("distribution", LAWS)
@pytest.mark.covers(1)
def test_a_row_gives_the_same_in_batches_of_two_to_eight(distribution: dict[str, Any], count: int) -> None:
    family = list(FAMILIES)[count % 4]
    model, lengths, new = toy(family, sharp=1.2), (4, 9, 2, 7, 1, 3, 12, 5)[:count], (5, 8, 6, 3, 9, 4, 1, 7)[:count]
    given = prompts(lengths)
    spec = ("threshold:tau=0.4@dual", "factor@prefix:refresh=2", "threshold:tau=0.4+eos@dual:refresh=3")[count % 3]
    whole = fill(model, spec, given, new, stop_ids=(EOS,), **distribution)
    backwards = fill(
        model, spec, given[::-1], new[::-1], stop_ids=(EOS,), seeds=range(99 + count, 99, -1), **distribution
    )
    for row in (0, count // 2, count - 1):
        alone = fill(model, spec, [given[row]], new[row], seeds=[100 + row], stop_ids=(EOS,), **distribution)
        assert same(alone, 0, whole, row)
        assert same(alone, 0, backwards, count - 1 - row)


@pytest.mark.parametrize("spec", [spec for spec in SPECS if spec.startswith(("confidence", "eos"))])
def test_the_mask_id_is_never_committed_however_likely(spec: str) -> None:
    families = [family for family in fitting(spec) if family != "shifted-sdar"]
    for family, distribution in zip(families, LAWS, strict=False):
        got = fill(biased(toy(family), MASK, 1e4), spec, prompts((3, 5)), 5, stop_ids=(EOS,), **distribution)
        check(got, may_stop=True)


@pytest.mark.parametrize("spec", [spec for spec in SPECS if spec.startswith(("confidence", "eos"))])
def test_given_tokens_of_a_template_stay(spec: str) -> None:
    m = MASK
    canvases = [[m, 3, m, m, 5, 6, 7, m, m, 2], [1, 2, 3, m, 4, 4, 4, 4, 4, 4, 4, 4, m], [5, 6, 7], [4, m]]
    family = "dream" if "dream" in fitting(spec) else "shifted-sdar"
    for absolute, starts in ((False, (0, 2, 3, 1)), (True, (0, 3, 1, 1))):
        if family != "dream" and not absolute:
            continue
        got = run(toy(family, sharp=1.2), spec, request(canvases, starts, absolute=absolute))
        check(got)
        for row, canvas in enumerate(canvases):
            kept = np.array(canvas) != MASK
            assert (got.tokens[row, : len(canvas)][kept] == np.array(canvas)[kept]).all()
            assert (got.trace.commit_step[row, : len(canvas)] == PROMPT).tolist() == kept.tolist()
        assert got.nfe[2] == 0
        assert got.reasons[2] == "length"


@pytest.mark.parametrize("absolute", [False, True])
@pytest.mark.parametrize(("prompt", "new"), [(3, 0), (4, 0), (9, 0), (1, 1), (BLOCK, BLOCK), (2, 2 * BLOCK + 1)])
def test_rows_of_any_shape_stand_beside_each_other(prompt: int, new: int, absolute: bool) -> None:
    got = fill(toy(sharp=1.2), "threshold:tau=0.4@dual", prompts((5, prompt, 2)), (6, new, 3), absolute=absolute)
    check(got)
    assert got.nfe[1] == 0 if new == 0 else got.nfe[1] >= 1


def test_a_batch_in_which_nothing_is_open_makes_no_forward() -> None:
    def refuse(logits: Any) -> Any:
        raise AssertionError("a forward was made")

    got = fill(altered(toy(), refuse), "threshold@dual", prompts((2, 7)), (0, 0))
    assert got.nfe == (0, 0)
    assert got.tokens_fed == (0, 0)


def test_equal_logits_everywhere_still_end() -> None:
    for spec in ("sequential", "threshold:tau=1", "factor:f=0", "entropy_threshold:tau=0", "margin+threshold"):
        got = fill(altered(toy(), lambda logits: logits * 0), f"{spec}@dual", prompts((3, 4)), 6)
        check(got)
        assert (got.tokens[:, 5:9][got.trace.commit_step[:, 5:9] >= 0] == 0).all()  # the lowest id of all that tie
        assert got.trace.commit_step[0, 3:7].tolist() == [0, 1, 2, 3]  # and the lowest position


def test_each_row_has_its_own_block_and_clock() -> None:
    """A row with certain tokens finishes its blocks while its neighbour is in the first."""
    model, given = biased(toy(sharp=0.01), 3, 30.0), prompts((2, 2))
    both = fill(model, "threshold:tau=0.9", given, (12, 12))
    assert both.nfe == (3, 3)
    mixed = fill(toy(seed=2, sharp=3.0), "threshold:tau=0.6", prompts((2, 6, 4), seed=5), (12, 12, 12))
    assert len(set(mixed.nfe)) > 1


@pytest.mark.parametrize("head", HEADS)
def test_a_resolved_spec_is_its_own_resolution(head: str) -> None:
    for each in HEADS[head]:
        full = registry.resolve(f"{head}@{each}").spec
        again = registry.resolve(str(full)).spec
        assert (again, str(again)) == (full, str(full))
