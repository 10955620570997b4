"""The masked loop against the naive decoder: the same tokens, committed by the same forwards."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from pardec.samplers.events import Finished
from pardec.samplers.rng import Keyed
from tests.reference import naive_masked as naive
from tests.samplers.toys import BLOCK, EOS, FAMILIES, MASK, biased, fill, prompts, request, run, toy

LENGTHS, NEW = (5, 1, 8), (9, 6, 3)  # ragged prompts, and blocks that do not divide what is generated
SELECTS: dict[str, Any] = {
    "sequential": naive.sequential,
    "fixed": naive.fixed(),
    "fixed:steps=4": naive.fixed(4),
    "fixed:steps=7": naive.fixed(7),
    "fixed:steps=40": naive.fixed(40),
    "fixed:order=random": naive.fixed(order="random"),
    "fixed:steps=5,order=random": naive.fixed(5, "random"),
    "threshold:tau=0.4": naive.threshold(0.4),
    "threshold:tau=0.9": naive.threshold(0.9),
    "threshold:tau=0": naive.threshold(0),
    "factor:f=0.7": naive.factor(0.7),
    "factor": naive.factor(1.0),
    "factor:f=0.7,reference=true": naive.factor(0.7, reference=True),
    "entropy_threshold:tau=1.5": naive.entropy_threshold(1.5),
}


def compare(
    model: Any, spec: str, select: Any, given: list[list[int]], new: tuple[int, ...], **options: Any
) -> Finished:
    """Runs both on every row; the tokens, the forward of each commit and the number of forwards must agree."""
    canvases = [row + [MASK] * count for row, count in zip(given, new, strict=True)]
    return compare_canvases(model, spec, select, canvases, [len(row) for row in given], **options)


def compare_canvases(
    model: Any, spec: str, select: Any, canvases: list[list[int]], starts: list[int], **options: Any
) -> Finished:
    absolute = options.setdefault("absolute", model.decoding_config.attention == "block-causal")
    stop_ids = options.get("stop_ids", ())
    seeds = tuple(range(100, 100 + len(canvases)))
    got = run(model, spec, request(canvases, starts, **options))
    first = spec.split("+")[0].split(":")[0].removesuffix("_threshold")
    proposer = first if first in ("margin", "entropy", "random") else "confidence"
    distribution = {key: options[key] for key in ("temperature", "top_k", "top_p", "cfg") if key in options}
    for row, canvas in enumerate(canvases):

        def uniform(step: int, position: int, purpose: str, width: int, seed: int = seeds[row]) -> Any:
            place = torch.tensor([[position]])
            return Keyed((seed,)).uniform(np.array([0]), np.array([step]), place, purpose, width)[0, 0].numpy()

        tokens, when, nfe = naive.decode(
            model,
            canvas,
            starts[row],
            select,
            uniform,
            propose=proposer,
            of="filtered" if "of=filtered" in spec else "raw",
            block_length=options.get("block_length", BLOCK),
            absolute=absolute,
            eos=stop_ids if "+eos" in spec else None,
            **distribution,
        )
        length = len(canvas)
        assert got.trace.commit_step[row, :length].tolist() == when, (spec, row)
        assert got.tokens[row, :length].tolist() == tokens, (spec, row)
        assert got.nfe[row] == nfe
    return got


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("spec", SELECTS)
@pytest.mark.covers(1)
def test_each_select_commits_what_the_papers_rule_commits(spec: str, family: str) -> None:
    compare(toy(family, seed=1, sharp=1.2), spec, SELECTS[spec], prompts(LENGTHS, seed=1), NEW)


@pytest.mark.parametrize("spec", ["margin", "entropy", "random", "margin:of=filtered", "entropy:of=filtered"])
@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.covers(1)
def test_each_proposer_orders_as_defined(spec: str, family: str) -> None:
    distribution = {"temperature": 0.7, "top_k": 6} if "filtered" in spec else {}
    compare(
        toy(family, seed=3, sharp=1.2), f"{spec}+sequential", naive.sequential, prompts(LENGTHS), NEW, **distribution
    )
    compare(
        toy(family, seed=3, sharp=1.2), f"{spec}+fixed:steps=5", naive.fixed(5), prompts(LENGTHS), NEW, **distribution
    )


def test_a_margin_is_held_against_the_threshold() -> None:
    compare(toy(seed=4, sharp=1.2), "margin+threshold:tau=0.3", naive.threshold(0.3), prompts(LENGTHS), NEW)
    compare(toy(seed=4, sharp=1.2), "entropy+threshold:tau=-1.2", naive.threshold(-1.2), prompts(LENGTHS), NEW)


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
@pytest.mark.covers(2)
def test_blocks_of_any_length_on_either_grid(family: str, block_length: int, absolute: bool) -> None:
    options = {"block_length": block_length, "absolute": absolute}
    for spec in ("threshold:tau=0.4", "fixed:steps=6"):
        compare(
            toy(family, seed=7, sharp=1.2), spec, SELECTS.get(spec, naive.fixed(6)), prompts(LENGTHS), NEW, **options
        )


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("spec", ["sequential", "fixed:steps=4", "threshold:tau=0.4"])
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
