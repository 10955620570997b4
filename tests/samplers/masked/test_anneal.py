"""`anneal`: the temperature of a block's logits falls from step to step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from pardec.samplers.masked.contracts import Evidence
from pardec.samplers.masked.logits.anneal import Anneal, State
from pardec.samplers.ops.distribution import DenseDistribution
from tests.samplers.eight_tokens import LAWS, MASK
from tests.samplers.toys import fill, fill_alone, prompts, request, run, same, table, toy

SPEC = "anneal:high=0.8,low=0.4,steps=4+sequential"


def expected(temperature: float, place: int) -> float:
    """The probability of the likeliest token of a position at a temperature."""
    return float((LAWS.log() / temperature).softmax(-1)[place].max())


@pytest.mark.parametrize(("block_length", "order"), [(8, [4, 0, 2, 6, 5, 1, 7, 3]), (4, [0, 2, 1, 3, 4, 6, 5, 7])])
def test_temperatures_by_hand(block_length: int, order: list[int]) -> None:
    """.4 + .4 n / 4 for n = 4, 3, 2, 1 remaining steps, then the last temperature; it starts again in each block."""
    got = run(table(LAWS), SPEC, request([[MASK] * 8], [0], block_length=block_length))
    temperatures = [0.8, 0.7, 0.6, 0.5, 0.5, 0.5, 0.5, 0.5] if block_length == 8 else [0.8, 0.7, 0.6, 0.5] * 2
    assert got.trace.commit_step[0].argsort().tolist() == order
    for place, temperature in zip(order, temperatures, strict=True):
        assert got.trace.commit_score[0, place].item() == pytest.approx(expected(temperature, place), abs=1e-6)


def test_the_requests_own_temperature_comes_on_top() -> None:
    """The request's own temperature is applied in addition: a stage with one constant temperature equals it."""
    model, given = toy("dream", sharp=1.2), prompts((4, 7))
    one = fill(model, "anneal:high=0.5,low=0.5+confidence:of=filtered+sequential", given, 8, temperature=1.6)
    other = fill(model, "confidence:of=filtered+sequential", given, 8, temperature=0.8)
    assert all(same(one, row, other, row) for row in range(2))


def test_each_row_has_the_temperature_of_its_own_step_and_later_steps_the_last_one() -> None:
    """.4 + .4 n / 4: four steps left at 0, two at 2, and one at 3 and after it."""
    stage, logits = Anneal(high=0.8, low=0.4, steps=4), torch.ones(4, 1, 3)
    canvas: Any = SimpleNamespace(block_started=np.array([True, False, False, False]), step=np.array([5, 2, 3, 9]))
    got = stage.logits(Evidence(DenseDistribution(logits), *[None] * 3), canvas, State(np.zeros(4, dtype=np.int64)))  # type: ignore[arg-type]
    assert (1 / got.logits[:, 0, 0]).tolist() == pytest.approx([0.8, 0.6, 0.5, 0.5])


def test_rows_of_a_ragged_batch_have_their_own_temperatures() -> None:
    model, given, new = toy("dream", sharp=1.2), prompts((4, 7, 2)), (9, 5, 11)
    spec = "anneal:high=3,low=0.2,steps=5+threshold:tau=0.4"
    whole = fill_alone(model, spec, given, new, temperature=0.8)
    assert len(set(whole.nfe)) > 1
