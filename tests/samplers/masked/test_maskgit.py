"""`maskgit`: few tokens at first and many at last by a cosine, the most confident under fading noise."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pardec.samplers.masked.canvas import Canvas
from pardec.samplers.masked.contracts import Update
from pardec.samplers.masked.select.maskgit import MaskGIT, _schedule
from tests.samplers.eight_tokens import MASK, SURE, steps_of
from tests.samplers.masked_pictures import CAPTIONS, check_published
from tests.samplers.schedule_checks import first_sets
from tests.samplers.spec_checks import commits_at, refused_specs

# floor(8 cos(pi/2 (i + 1) / s)) stay open after step i. Ranked .99 .95 .91 .901 .85 .60 .45 .30, at 4 0 2 6 5 1 7 3
STEPS = {
    "maskgit:noise=0,steps=4": [1, 3, 1, 3, 0, 2, 2, 3],  # 7, 5, 3, 0 stay
    "maskgit:noise=0,steps=2": [0, 1, 0, 1, 0, 1, 1, 1],  # 5, 0
    "maskgit:noise=0,steps=1": [0] * 8,
    "maskgit:noise=0": [1, 5, 2, 7, 0, 4, 3, 6],  # one at least: 7, 6 though the cosine says 7, and so on
    "margin+maskgit:noise=0,steps=2": [0, 1, 0, 1, 0, 1, 1, 1],
}


test_eight_tokens_by_hand = commits_at(STEPS)


def test_a_step_that_would_commit_nothing_commits_one_of_the_highest_noise() -> None:
    """Of 8 tokens in 8 steps the cosine leaves 7 after the first step and after the second."""
    canvas = Canvas((torch.full((8,), MASK),), (0,), mask_id=MASK, pad_id=4, block_length=8)
    stage = MaskGIT()
    state = stage.start(canvas)
    for _ in range(2):
        stage.skipped_steps(canvas, state)
        assert state.quota.tolist() == [1]
        first = canvas.window == canvas.first_open[0]
        canvas.commit(Update(first, torch.zeros_like(canvas.window), first.float()))


def test_the_noise_fades_by_the_time_left_or_by_the_product_of_it_so_far() -> None:
    left = {"linear": [0.75, 0.5, 0.25, 0], "product": [0.75, 0.375, 0.09375, 0], "none": [1] * 4}
    assert {how: _schedule(4, how)[1].tolist() for how in left} == left


def test_the_steps_are_shared_out_over_the_blocks() -> None:
    """Two steps each: floor(4 cos(45 degrees)) = 2 stay open, then none."""
    assert steps_of("maskgit:noise=0,steps=4", block_length=4) == [0, 1, 0, 1, 2, 3, 2, 3]


@pytest.mark.parametrize("parameters", ["noise=1,anneal=none", "noise=2,anneal=linear", "noise=2,anneal=product"])
def test_noise_of_weight_one_draws_by_the_probabilities(parameters: str) -> None:
    """One of three tokens at the first of two steps, where the fading weight is 1/2: ln p + g is largest with p."""
    rows, places = 1500, (1, 3, 7)
    weight = np.array([SURE[at] for at in places])
    found = first_sets(f"maskgit:steps=2,{parameters}", rows, 1, places)
    expected = rows * weight / weight.sum()
    chi = sum((found.get((at,), 0) - count) ** 2 / count for at, count in enumerate(expected))
    assert chi < 18  # 2 degrees of freedom: over 18 once in 8,000 seeds


@pytest.mark.parametrize("cfg", [None, 3.5])
@pytest.mark.parametrize(("published", "temperature"), [("dimoo", 1.0), ("dimoo", 0.7), ("mmada", 1.0)])
@pytest.mark.parametrize("caption", CAPTIONS)
@pytest.mark.covers(2)
def test_the_published_loop_step_by_step(caption: str, published: str, temperature: float, cfg: float | None) -> None:
    check_published(caption, published, temperature, None, cfg)


test_what_is_refused = refused_specs(
    [
        ("entropy+maskgit", "maskgit adds noise to the logarithm of a probability, and the scores of entropy are none"),
    ]
)
