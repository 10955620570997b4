"""Constrained spans are satisfied by every method, family, order and batch, on toys with given logits."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import pardec
from pardec.models.errors import SpecError
from pardec.samplers.ops.token_automaton import TokenAutomaton
from pardec.samplers.request import ConstrainedSpan
from tests.grids import one_in, thinned
from tests.samplers.toys import EVERY_FAMILY, names, resolved, toy

VOCAB, MASK, NEW = 20, 19, 11
WORDS = [(2, 3, 4), (2, 5, 1), (6, 3, 1), (7, 7, 7)]  # what a gap of three may hold; 1 is a pad


def of_words(words: list[tuple[int, ...]]) -> TokenAutomaton:
    """An automaton of exactly these words: a state for each prefix, a kind for each token."""
    prefixes = sorted({word[:length] for word in words for length in range(4)}, key=len)
    number = {prefix: at for at, prefix in enumerate(prefixes)}
    kind = np.arange(VOCAB) + 1
    step = np.full((len(prefixes), VOCAB + 1), len(prefixes))
    for prefix, at in number.items():
        if prefix:
            step[number[prefix[:-1]], kind[prefix[-1]]] = at
    return TokenAutomaton(3, kind, step, np.array([prefix in words for prefix in prefixes]))


AUTOMATON = of_words(WORDS)
STARTS = (0, 4, 8)  # the second gap crosses the border of blocks of four


def test_sets_are_those_of_the_words_that_are_left() -> None:
    for tokens in itertools.product([-1, *sorted({token for word in WORDS for token in word})], repeat=3):
        left = [word for word in WORDS if all(own in (-1, token) for own, token in zip(tokens, word, strict=True))]
        assert AUTOMATON.allows(np.array(tokens)) == bool(left)
        sets = AUTOMATON.sets(np.array(tokens))
        for position in range(3):
            others = [own for at, own in enumerate(tokens) if at != position]
            free = [
                word[position]
                for word in WORDS
                if all(own in (-1, token) for own, token in zip(others, np.delete(word, position), strict=True))
            ]
            assert set(np.flatnonzero(sets[position])) == set(free)


def decoded(model: pardec.Model, ids: list[list[int]], seeds: list[int], **arguments: Any) -> list[list[int]]:
    call = model.prepare(input_ids=ids, max_new_tokens=NEW, stop_ids=[], seed=seeds, **arguments)
    gaps = tuple(
        tuple(ConstrainedSpan(start + at, AUTOMATON) for at in (STARTS if len(ids[row]) != 2 else ()))
        for row, start in enumerate(call.request.prompts)
    )
    *_, last = model.run(replace(call, request=replace(call.request, constrained_spans=gaps)))
    return [
        row[start : start + NEW].tolist()
        for row, start in zip(last.tokens, call.prompts, strict=True)  # type: ignore[attr-defined]
    ]


OTHERS = [name for stage in ("logits", "propose", "widen", "revise", "finish") for name in names(stage)]
SPECS = [f"{select}@{cache}" for select in names("select") for cache in ("none", "dual")]
SPECS += [f"threshold:tau=0.3+{name}" for name in OTHERS]
SPECS += ["fixed:steps=2+wino@dual", "fixed:steps=2+remdm", "edit:tau=0.0+fixed:steps=2", "edit:tau=0.0,of=filtered"]
SPECS += ["sequential+prophet:early=0.0,mid=0.0,late=0.0", "fixed:steps=3,order=random@dkv_greedy"]
IDS, SEEDS = [[1, 2, 3], [4, 5], [6, 7, 8, 9, 10]], [1, 2, 3]


SELDOM = {f"{select}@{('dual', 'none')[at % 2]}" for at, select in enumerate(names("select"))}  # the other one runs


@pytest.mark.parametrize(
    "spec", thinned(((spec,) for spec in SPECS if resolved(spec)), lambda spec: spec not in SELDOM)
)
def test_every_method_keeps_gaps_to_their_words(spec: str) -> None:
    model = pardec.Model(toy("dream", sharp=1.2))
    if "levenshtein" in spec or "grow" in spec:
        with pytest.raises(SpecError, match="for fixed positions, and (levenshtein|grow) moves tokens"):
            decoded(model, IDS, SEEDS, sampler=spec, block_length=4)
        return
    for temperature in (0.0, 1.5) if one_in(3, spec) else (1.5,):
        arguments: dict[str, Any] = {"sampler": spec, "temperature": temperature, "block_length": 4}
        together = decoded(model, IDS, SEEDS, **arguments)
        for row in (0, 2):
            assert all(tuple(together[row][at : at + 3]) in WORDS for at in STARTS), together[row]
        if temperature:
            assert decoded(model, IDS[2:], SEEDS[2:], **arguments) == together[2:]


@pytest.mark.parametrize("family", EVERY_FAMILY)
def test_every_family_keeps_gaps_to_their_words(family: str) -> None:
    model = pardec.Model(toy(family, sharp=1.2))
    for sampler, more in (("threshold:tau=0.3", {"temperature": 1.0}), ("random", {"cfg": 1.5}), ("fixed:steps=3", {})):
        if family == "sdlm" and sampler != "threshold:tau=0.3":  # a schedule has no sliding window
            sampler += "@causal"
        together = decoded(model, IDS, SEEDS, sampler=sampler, **more)
        for row in (0, 2):
            assert all(tuple(together[row][at : at + 3]) in WORDS for at in STARTS), (family, together[row])
        assert decoded(model, IDS[2:], SEEDS[2:], sampler=sampler, **more) == together[2:]
