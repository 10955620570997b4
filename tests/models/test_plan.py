from __future__ import annotations

import pytest
import torch

from pardec.models import plan as plan_module
from pardec.models.errors import ModelError
from pardec.models.plan import Plan, Visible
from tests.models.toys import ask, ids


def test_full_asks_for_every_position():
    plan = Plan.full(ids(2, 5), Visible.causal())
    assert (plan.batch, plan.width, plan.uniform, plan.span) == (2, 5, 5, (0, 5))
    assert plan.positions.tolist() == [[0, 1, 2, 3, 4]] * 2
    assert plan.lengths.tolist() == [5, 5]
    assert plan.want.tolist() == plan.positions.tolist()


def test_full_with_lengths_pads_what_lies_past_them():
    plan = Plan.full(ids(2, 4), Visible.causal(), torch.tensor([4, 2]))
    assert plan.positions.tolist() == [[0, 1, 2, 3], [0, 1, -1, -1]]
    assert plan.slots.tolist() == plan.positions.tolist()
    assert plan.uniform is None


@pytest.mark.parametrize("limit", [1 << 20, 0], ids=["compared", "sorted"])
def test_at_finds_queries_by_position(limit, monkeypatch):
    monkeypatch.setattr(plan_module, "_COMPARE_LIMIT", limit)
    positions = torch.tensor([[7, 3, -1, 12], [0, 5, 9, 2]])
    plan = ask(ids(2, 4), positions, Visible.bidirectional(), torch.tensor([13, 10]))
    asked = torch.tensor([[3, 12, 4, -1, 7], [9, 9, 12, 0, -1]])
    assert plan.at(asked).tolist() == [[1, 3, -1, -1, 0], [2, 2, -1, 0, -1]]


@pytest.mark.parametrize("limit", [1 << 20, 0], ids=["compared", "sorted"])
def test_at_takes_the_first_of_equal_positions(limit, monkeypatch):
    monkeypatch.setattr(plan_module, "_COMPARE_LIMIT", limit)
    plan = ask(ids(1, 4), torch.tensor([[4, 5, 5, 5]]), Visible.causal(), torch.tensor([6]))
    assert plan.at(torch.tensor([[5, 4]])).tolist() == [[1, 0]]


def test_at_uses_the_span():
    plan = Plan(
        ids(1, 3),
        *[torch.tensor([[4, 5, 6]])] * 2,
        Visible.causal(),
        torch.tensor([7]),
        torch.tensor([[0]]),
        span=(4, 7),
    )
    assert plan.at(torch.tensor([[3, 4, 6, 7, -1]])).tolist() == [[-1, 0, 2, -1, -1]]


def test_segments_want_a_block_or_ids():
    with pytest.raises(ModelError, match="either block or ids"):
        Visible.segments()
    with pytest.raises(ModelError, match="at least 1, got 0"):
        Visible.segments(0)


def test_a_mask_has_to_be_boolean():
    with pytest.raises(ModelError, match="bool tensor"):
        Visible.mask(torch.ones(1, 2, 3))
