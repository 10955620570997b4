"""`bound`: commits every score that reaches `tau`, or that reaches `least` and a bound that grows with its rank."""

from __future__ import annotations

import pytest
import torch

from tests.reference import naive_selects as naive
from tests.samplers.parity import FAMILIES, agree, agree_recorded
from tests.samplers.spec_checks import commits_at, refused_specs
from tests.samplers.toys import fill, prompts, request, run, same, table, toy

# Ranked .99 .95 .91 .901 .85 .60 .45 .30, at 4 0 2 6 5 1 7 3
STEPS = {
    # 1 - 2 / (r + 2) = 0 .333 .5 .6 .667 .714: all but the last three; of .60 .45 .30 then two, and .30 alone
    "bound:least=0.4": [0, 1, 0, 2, 0, 0, 0, 1],
    "bound:least=0.5": [0, 1, 0, 3, 0, 0, 0, 2],
    "bound:f=0": [0, 2, 0, 4, 0, 1, 0, 3],  # a threshold of .9
    "bound:f=0,tau=1": [1, 5, 2, 7, 0, 4, 3, 6],
    "bound:f=100,least=0": [0] * 8,
}


test_eight_tokens_by_hand = commits_at(STEPS)


@pytest.mark.parametrize(
    ("rule", "values"),
    [("tau={},least=1,f=0", (0.5, 0.51)), ("tau=1,least={},f=100", (0.5, 0.51)), ("tau=1,least=0,f={}", (1.5, 1.49))],
)
def test_a_score_of_just_the_bound_is_enough(rule: str, values: tuple[float, float]) -> None:
    """Two scores of 1/2; f=1.5 asks for 1/4 and 1/2, and f=1.49 for a little more."""
    asked = request([[4] * 2], [0], block_length=2)
    halves = table(torch.tensor([0.5, 0.5, 0.0, 0.0, 0.0]).expand(2, 5))
    for value, count in zip(values, (2, 1), strict=True):
        assert run(halves, f"bound:{rule.format(value)}", asked).trace.gained[0][0] == count


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("tau", "least", "f"), [(0.9, 0.45, 2.0), (0.3, 0.2, 3.0), (0.9, 0.2, 3.0), (0.3, 0.45, 2.0)])
@pytest.mark.covers(1)
def test_it_is_the_naive_rule(family: str, tau: float, least: float, f: float) -> None:
    length = {} if "sdar" in family else {"block_length": 8}
    agree(f"bound:tau={tau},least={least},f={f}", lambda: naive.bound(tau, least, f), family=family, **length)


@pytest.mark.parametrize("name", ["llada", "dream"])
def test_it_is_the_naive_rule_on_recorded_checkpoints(name: str) -> None:
    agree_recorded(name, "bound", lambda: naive.bound(0.9, 0.45, 2.0))


@pytest.mark.parametrize(
    ("spec", "other"), [("bound:f=0,tau=0.4", "threshold:tau=0.4"), ("bound:f=2,tau=1,least=0", "factor:f=2")]
)
def test_what_it_reduces_to(spec: str, other: str) -> None:
    model, given, new = toy("dream", sharp=1.2), prompts((4, 7, 2)), (9, 5, 11)
    one, two = (fill(model, each, given, new) for each in (spec, other))
    assert all(same(one, row, two, row) for row in range(3))


test_bad_parameters = refused_specs(
    [
        ("tau=1.5", r"tau must lie in \[0, 1\], got 1.5"),
        ("least=-1", r"least must lie in \[0, 1\], got -1.0"),
        ("f=-1", "f must be at least 0, got -1.0"),
    ],
    before="bound:",
)
