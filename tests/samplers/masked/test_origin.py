"""Dream's random transfer: compared with the naive decoder, its distribution, and no idle forward."""

from __future__ import annotations

import numpy as np
import pytest

from tests.grids import chequered
from tests.reference import naive_schedules as naive
from tests.samplers.eight_tokens import LAWS, steps_of
from tests.samplers.schedule_checks import agree
from tests.samplers.spec_checks import refused_specs
from tests.samplers.toys import FAMILIES, request, run, table, toy


@pytest.mark.parametrize(("family", "steps"), chequered(FAMILIES, [None, 1, 3, 7, 50, 200]))
@pytest.mark.covers(1)
def test_as_the_naive_decoder(family: str, steps: int | None) -> None:
    """The naive decoder runs idle forwards too; commits are equal, by the forwards that are not idle."""
    text = "none" if steps is None else steps
    model = toy(family, seed=3, sharp=1.2)
    if steps in (None, 3, 50):
        agree(model, f"origin:steps={text}", naive.origin(), steps)
    else:
        agree(model, f"margin+origin:steps={text},eps=0.2", naive.origin(0.2), steps, propose="margin")


def test_one_step_takes_all() -> None:
    assert steps_of("origin:steps=1") == [0] * 8
    assert steps_of("origin:steps=2", block_length=4) == [0] * 4 + [1] * 4


def test_each_position_is_drawn_with_the_probability_of_the_step() -> None:
    """Two steps of probabilities .5 (eps = 0) and 1: three positions come together with .5 ** 3 + .5 ** 3 = 1/4."""
    rows = 2000
    got = run(table(LAWS[:3]), "origin:steps=2,eps=0", request([[6] * 3] * rows, [0] * rows, block_length=3))
    assert set(got.nfe) == {1, 2}
    assert abs(got.nfe.count(1) - rows / 4) < 4 * (rows * 3 / 16) ** 0.5
    early = (got.trace.commit_step[np.array(got.nfe) == 2] == 0).sum(1)  # 1 or 2 of the three, equally often
    assert set(early.tolist()) == {1, 2}
    assert abs((early == 1).mean() - 0.5) < 4 * 0.5 / len(early) ** 0.5


def test_a_position_is_drawn_afresh_at_every_step() -> None:
    """Four steps and one position: it is committed at any of them, without an idle forward before."""
    got = run(table(LAWS[:2]), "origin:steps=4,eps=0", request([[6, 6]] * 2000, [0] * 2000, block_length=2))
    # Both at the same of four equally likely steps: 1/4.
    assert abs(got.nfe.count(1) - 500) < 4 * (2000 * 3 / 16) ** 0.5


test_bad_parameters_are_refused = refused_specs(
    [("steps=0", "steps must be at least 1, got 0"), ("eps=1", r"eps must lie in \[0, 1\), got 1.0")], before="origin:"
)
