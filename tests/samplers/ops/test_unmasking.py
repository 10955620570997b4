"""MAR's cosine schedule compared with a plain version, and the step of a row in it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pardec.samplers.ops.unmasking import unmasking


def plainly(tokens: int, steps: int) -> list[int]:
    """The number of tokens left after each step that samples any."""
    left, found = tokens, []
    for step in range(steps):
        here = max(1, min(left - 1, math.floor(tokens * math.cos(math.pi / 2 * (step + 1) / steps))))
        if step == steps - 1:
            here = 0
        if here < left:
            found.append(here)
        left = min(here, left)
    return found


@pytest.mark.parametrize("tokens", [1, 2, 3, 16, 64, 100, 256])
def test_the_schedule_is_the_formulas(tokens: int) -> None:
    for steps in (1, 2, 3, 5, 8, tokens, tokens + 7):
        made = unmasking(tokens, steps)
        assert (tokens - made.bounds[1:]).tolist() == plainly(tokens, steps)
        assert made.bounds[0] == 0
        assert (np.diff(made.bounds) > 0).all()
        assert len(made) == len(made.left) == len(made.bounds) - 1
        if steps <= tokens:
            assert len(made) == steps  # so that steps are those of the formula


def test_as_many_steps_as_tokens_draw_one_each_at_first() -> None:
    counts = np.diff(unmasking(256, 256).bounds)
    assert counts[:3].tolist() == [1, 1, 1]
    assert counts.max() <= 2


def test_a_row_stands_at_the_step_that_comes_next() -> None:
    made = unmasking(16, 4)  # 0, 2, 5, 10, 16
    assert made.step(np.array([0, 2, 5, 10, 16])).tolist() == [0, 1, 2, 3, 4]


def test_linear_guidance_counts_what_is_left_after_the_step() -> None:
    """The last step leaves no token, and has the guidance of the one token that the formula leaves."""
    assert unmasking(16, 4).scale(3.0, "linear").tolist() == [1 + 2 * (16 - left) / 16 for left in (14, 11, 6, 1)]
    assert unmasking(16, 4).scale(3.0, "constant").tolist() == [3.0] * 4
    assert unmasking(16, 4).scale(1.0, "linear").tolist() == [1.0] * 4
