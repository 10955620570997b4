"""`denoise`: keeps jointly confident tokens until the canvas is stable and confident, or the steps are used up.

Decoding with it as a whole is compared with transformers' own in tests/models/families/test_diffusion_gemma.py.
"""

from __future__ import annotations

import pytest
import torch

from pardec.samplers.masked.canvas import Canvas
from pardec.samplers.masked.contracts import Evidence, Proposal
from pardec.samplers.masked.select.denoise import Denoise, Denoising, DenoisingState
from pardec.samplers.ops.distribution import DenseDistribution
from pardec.samplers.registry import build_method
from pardec.samplers.spec import parse
from tests.samplers.eight_tokens import LAWS, MASK, TOKENS
from tests.samplers.spec_checks import refused_specs
from tests.samplers.toys import request


def random_canvas() -> Canvas:
    return Canvas((torch.full((8,), MASK),), (0,), mask_id=MASK, pad_id=4, block_length=8)


def proposed(canvas: Canvas, laws: torch.Tensor = LAWS, temperature: float = 1.0) -> Proposal:
    """Sampled candidates, scored by entropy."""
    asked = request([[MASK] * 8], [0], block_length=8, temperature=temperature)
    evidence = Evidence(DenseDistribution(laws.log()[None]), canvas.window, canvas.eligible, asked)
    return build_method(parse("entropy:of=filtered").parts[0]).propose(evidence, canvas)


def kept(stage: Denoise, canvas: Canvas, state: object, laws: torch.Tensor = LAWS) -> list[int]:
    chosen = stage.select(proposed(canvas, laws), canvas, state).which
    canvas.step, canvas.block_started = canvas.step + 1, canvas.block_started & False
    return chosen[0].nonzero()[:, 0].tolist()


# Entropies in order: .067 at 4, .254 at 0, .401 at 2, .432 at 6, .588 at 5, ...; without the largest 0 .067 .321 .722


@pytest.mark.parametrize(("gamma", "places"), [(0, [4]), (0.1, [0, 4]), (0.4, [0, 2, 4]), (0.8, [0, 2, 4, 6])])
def test_what_is_kept_by_hand(gamma: float, places: list[int]) -> None:
    stage, canvas = Denoise(gamma=gamma), random_canvas()
    assert kept(stage, canvas, stage.start(canvas)) == places


def test_a_canvas_ends_once_it_is_stable_and_sure() -> None:
    """The mean entropy is .691, below .7, so the second step, whose argmax equals the first's, keeps all tokens."""
    for confidence, ends in ((0.7, True), (0.69, False)):
        stage, canvas = Denoise(gamma=0.1, confidence=confidence), random_canvas()
        state = stage.start(canvas)
        assert kept(stage, canvas, state) == [0, 4]
        assert (kept(stage, canvas, state) == list(range(8))) == ends


def test_a_canvas_whose_mean_entropy_is_the_bound_goes_on() -> None:
    rule, canvas = Denoising(gamma=0, confidence=0, steps=48), random_canvas()
    state = DenoisingState.of(canvas)
    certain = torch.zeros(8, 7).index_fill(1, torch.tensor(2), 1)
    for _ in range(2):  # the entropy is 0
        assert not rule.decide(proposed(canvas, certain), canvas, state)[2].any()
        canvas.step, canvas.block_started = canvas.step + 1, canvas.block_started & False


def test_entropy_is_that_of_the_distribution_that_tokens_are_drawn_from() -> None:
    """At temperature 0.5 six positions have .133 together without the largest; at 1 that bound is .722 for four."""
    stage, canvas = Denoise(gamma=0.4), random_canvas()
    chosen = stage.select(proposed(canvas, temperature=0.5), canvas, stage.start(canvas)).which
    powers = LAWS[:, :4] ** 2
    entropy = torch.special.entr(powers / powers.sum(1, keepdim=True)).sum(1)
    ranked, order = entropy.sort()
    assert chosen[0].nonzero()[:, 0].tolist() == sorted(order[ranked.cumsum(0) - ranked <= 0.4].tolist())
    assert int(chosen.sum()) == 6


@pytest.mark.parametrize("given", [3, 4])
def test_given_tokens_within_the_canvas_do_not_count(given: int) -> None:
    """Without 3, the least sure, the mean entropy is .593; without 4, the surest, it is .781, and 0 is kept first."""
    row = torch.full((8,), MASK)
    row[given] = 0
    for confidence, ends in ((0.6, given == 3), (0.79, True)):
        canvas = Canvas((row,), (0,), mask_id=MASK, pad_id=4, block_length=8)
        rule, state = Denoising(gamma=0, confidence=confidence, steps=48), DenoisingState.of(canvas)
        accepted, _, over = rule.decide(proposed(canvas), canvas, state)
        assert accepted[0].nonzero()[:, 0].tolist() == [0 if given == 4 else 4]
        assert not over.any()
        canvas.step, canvas.block_started = canvas.step + 1, canvas.block_started & False
        assert bool(rule.decide(proposed(canvas), canvas, state)[2].all()) == ends


def test_the_mean_entropy_is_of_the_row_s_own_positions() -> None:
    """The four of the shorter row have .254 1.113 .401 1.380: a mean of .787, not that of a row of eight."""
    canvas = Canvas((torch.full((8,), MASK), torch.full((4,), MASK)), (0, 0), mask_id=MASK, pad_id=4, block_length=8)
    asked = request([[MASK] * 8, [MASK] * 4], [0, 0], block_length=8, temperature=1.0)
    evidence = Evidence(DenseDistribution(LAWS.log().repeat(2, 1, 1)), canvas.window, canvas.eligible, asked)
    proposal = build_method(parse("entropy:of=filtered").parts[0]).propose(evidence, canvas)
    for confidence, ends in ((0.78, False), (0.79, True)):
        stage = Denoise(gamma=0, confidence=confidence)
        state = stage.start(canvas)
        for _ in range(2):
            chosen = stage.select(proposal, canvas, state).which
            canvas.step, canvas.block_started = canvas.step + 1, canvas.block_started & False
        assert chosen.all(1).tolist()[0]
        assert bool(chosen[1, :4].all()) == ends
        canvas.block_started |= True


def test_a_token_that_changes_keeps_a_canvas_open() -> None:
    stage, canvas, other = Denoise(gamma=0.1, confidence=9), random_canvas(), LAWS.clone()
    other[3] = LAWS[0]
    state = stage.start(canvas)
    first, second, third = (kept(stage, canvas, state, laws) for laws in (LAWS, other, other))
    assert [len(first) == 8, len(second) == 8, len(third) == 8] == [False, False, True]


def test_a_new_canvas_is_compared_with_nothing_and_has_its_own_steps() -> None:
    stage, canvas = Denoise(gamma=0, confidence=9, steps=3), random_canvas()
    state = stage.start(canvas)
    assert [len(kept(stage, canvas, state)) for _ in range(2)] == [1, 8], "stable at the second step"
    canvas.block_started = canvas.block_started | True
    assert [len(kept(stage, canvas, state)) for _ in range(2)] == [1, 8]


def test_the_last_step_keeps_all_with_the_likeliest_tokens() -> None:
    stage, canvas = Denoise(gamma=0, confidence=0, steps=2), random_canvas()
    state = stage.start(canvas)
    assert kept(stage, canvas, state) == [4]
    choice = stage.select(proposed(canvas), canvas, state)
    assert choice.which.all()
    assert choice.tokens[0].tolist() == list(TOKENS)


test_what_is_refused = refused_specs(
    [
        ("denoise", "denoise needs 'renoise', which replaces the other tokens"),
        ("denoise:gamma=-1+renoise", "gamma must be at least 0, got -1"),
        ("denoise:steps=0+renoise", "steps must be at least 1, got 0"),
    ]
)
