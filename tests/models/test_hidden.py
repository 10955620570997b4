from __future__ import annotations

from dataclasses import replace

import torch

from pardec.models.plan import Plan
from tests.models.toys import ids, model


def test_the_head_runs_on_what_is_wanted_and_on_what_is_asked_later():
    toy = model("bidirectional")
    plan = Plan.full(ids(2, 6), toy.visible())
    everything = toy.forward(plan).logits()
    out = toy.forward(replace(plan, want=torch.tensor([[5, 0], [2, -1]])))
    torch.testing.assert_close(out.logits()[0], everything[0, [5, 0]])
    torch.testing.assert_close(out.logits()[1, 0], everything[1, 2])
    asked = torch.tensor([[3, 3, 9], [4, 1, -1]])
    found = out.logits(asked)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found[0, :2], everything[0, [3, 3]])
    torch.testing.assert_close(found[1, :2], everything[1, [4, 1]])
    assert out.has(asked).tolist() == [[True, True, False], [True, True, False]]


def test_logits_of_all_queries_in_order_are_those_that_are_gathered():
    toy = model("bidirectional")
    hidden = toy.forward(Plan.full(ids(2, 6), toy.visible()))
    assert hidden.logits(in_order=True).equal(hidden.logits())
    few = toy.forward(replace(hidden.plan, want=torch.tensor([[5, 0], [2, 3]])))
    assert few.logits(in_order=True).equal(few.logits())


def test_nothing_wanted_gives_no_logits():
    toy = model()
    plan = replace(Plan.full(ids(2, 3), toy.visible()), want=torch.empty(2, 0, dtype=torch.int64))
    assert toy.forward(plan).logits().shape == (2, 0, toy.vocab_size)


def test_logits_can_be_asked_outside_inference_mode_of_a_model_in_training():
    toy = model()
    toy.decoder.requires_grad_(True)
    out = toy.forward(Plan.full(ids(1, 3), toy.visible()))
    assert not out.logits().requires_grad
