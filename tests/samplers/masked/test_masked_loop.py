"""The masked loop compared with the naive decoder: the same tokens, committed by the same forwards."""

from __future__ import annotations

from typing import Any

import pytest

from tests.reference import naive_masked as naive
from tests.samplers.loop_parity import LENGTHS, NEW, compare, compare_canvases
from tests.samplers.toys import EOS, FAMILIES, MASK, biased, fill, prompts, toy

SELECTS = {
    "sequential": naive.sequential,
    "fixed:steps=4": naive.fixed(4),
    "threshold:tau=0.4": naive.threshold(0.4),
}


@pytest.mark.parametrize(
    "distribution",
    [
        {"temperature": 1.0},
        {"temperature": 0.6, "top_p": 0.8},
        {"temperature": 1.3, "top_k": 3},
        {"temperature": 0.9, "top_p": 0.9, "top_k": 5},
        {"temperature": 0.8, "cfg": 1.6, "top_p": 0.95},
        {"cfg": 2.5},
        {"cfg": 0.5},
        {"top_p": 0.5, "top_k": 3},
    ],
)
@pytest.mark.parametrize("family", ["llada", "shifted-sdar"])
@pytest.mark.covers(1)
def test_sampling_and_guidance_are_the_formulas(family: str, distribution: dict[str, Any]) -> None:
    model = toy(family, seed=5, sharp=1.2)
    compare(model, "sequential", naive.sequential, prompts(LENGTHS), NEW, **distribution)
    compare(
        model, "confidence:of=filtered+threshold:tau=0.5", naive.threshold(0.5), prompts(LENGTHS), NEW, **distribution
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_a_row_ends_at_its_first_end_token(family: str) -> None:
    model = biased(toy(family, seed=6, sharp=1.2), EOS, 2.0)
    specs = {"threshold:tau=0.3+eos": naive.threshold(0.3), "sequential+eos": naive.sequential}
    reasons = set()
    for spec, select in specs.items():
        for ends in ((EOS,), (EOS, 7)):
            reasons |= set(compare(model, spec, select, prompts(LENGTHS), NEW, stop_ids=ends).reasons)
    assert "stop" in reasons


@pytest.mark.parametrize("absolute", [False, True])
@pytest.mark.parametrize("block_length", [1, 3, 5, 50])
@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.covers(1)
def test_blocks_of_any_length_on_either_grid(family: str, block_length: int, absolute: bool) -> None:
    options = {"block_length": block_length, "absolute": absolute}
    for spec, select in {"threshold:tau=0.4": naive.threshold(0.4), "fixed:steps=6": naive.fixed(6)}.items():
        compare(toy(family, seed=7, sharp=1.2), spec, select, prompts(LENGTHS), NEW, **options)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("spec", SELECTS)
@pytest.mark.covers(1)
def test_templates_hold_given_tokens_between_masks(spec: str, family: str) -> None:
    m, block_causal = MASK, FAMILIES[family][1] == "block-causal"
    canvases = [
        [m, 3, m, m, 5, 6, 7, m, m, 2],  # opens at position 0
        [1, 2, 3, m, 4, 4, 4, 4, 4, 4, 4, 4, m],  # a block between them has nothing open
        [1, 2, 3, 4, 5, m, m],
        [5, 6, 7],  # nothing to fill
    ]
    for starts in ([0, 0, 0, 0], [0, 2, 5, 1]):
        got = compare_canvases(
            toy(family, seed=8, sharp=1.2), spec, SELECTS[spec], canvases, starts, absolute=block_causal
        )
        assert got.nfe[3] == 0


def test_an_end_token_that_was_given_stops_nothing() -> None:
    canvases = [[1, 2, MASK, EOS, MASK, MASK, 4, MASK], [EOS, EOS, MASK, MASK, MASK]]
    got = compare_canvases(
        toy(seed=9, sharp=1.2), "sequential+eos", naive.sequential, canvases, [0, 2], stop_ids=(EOS,)
    )
    assert (got.tokens[0] != MASK).all()


def test_guidance_hides_every_given_token_of_the_template() -> None:
    canvases = [[1, MASK, 3, MASK, MASK, 6, 7, MASK]]
    compare_canvases(toy(seed=10, sharp=1.2), "sequential", naive.sequential, canvases, [1], cfg=1.8)


def test_a_seed_gives_the_same_tokens_again_and_another_seed_others() -> None:
    model, given = toy(sharp=0.3), prompts(LENGTHS)
    first = fill(model, "sequential", given, NEW, temperature=1.0)
    assert (fill(model, "sequential", given, NEW, temperature=1.0).tokens == first.tokens).all()
    other = fill(model, "sequential", given, NEW, temperature=1.0, seeds=[1, 2, 3])
    assert all((other.tokens[row] != first.tokens[row]).any() for row in range(3))
