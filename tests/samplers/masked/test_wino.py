"""`wino`: drafts freely, verifies each token by its leave-one-out prediction, and masks failing ones again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from pardec.samplers.masked.revise.wino import State, Wino
from pardec.samplers.registry import resolve
from tests.reference import naive_revise as naive
from tests.samplers.revise_checks import as_the_select_alone, compare
from tests.samplers.spec_checks import refused_specs
from tests.samplers.toys import BLOCK, fill, table


@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize("size", [BLOCK, 8])
@pytest.mark.covers(1)
def test_it_is_the_naive_rule(family: str, size: int) -> None:
    changed = 0
    for seed in range(3):
        _, differs = compare("wino:draft=0.4,verify=0.8", naive.wino, family, size, seed, draft=0.4, verify=0.8)
        changed += differs
    assert changed, "nothing was ever revoked: the test shows nothing"


def test_a_step_drafts_a_share_of_the_open_positions_within_bounds() -> None:
    sure = torch.tensor([1.0, 0.0, 0.0, 0.0, 0.0]).expand(41, 5)
    done = fill(table(sure), "wino:draft=0.5,verify=0.1", [[0]], 40, block_length=40)
    assert done.trace.gained[0] == [20, 14, 5, 1]  # of 40, 20, 6 and 1


def test_a_token_as_likely_as_verify_stays() -> None:
    halves = torch.tensor([0.5, 0.5, 0.0, 0.0, 0.0]).expand(9, 5)
    assert fill(table(halves), "wino:draft=0.5,verify=0.5", [[0]], 8, block_length=8).nfe == (2,)  # 5 and 3
    assert fill(table(halves), "wino:draft=0.5,verify=0.51", [[0]], 8, block_length=8).nfe > (2,)


@pytest.mark.parametrize(("begins", "again"), [(False, [0]), (True, [0, 1])])
def test_a_step_takes_back_fewer_than_the_one_before_drafted_but_in_a_new_block(begins: bool, again: list[int]) -> None:
    """Two of the four tokens are doubtful, the first one more, and the step before drafted two."""
    canvas: Any = SimpleNamespace(
        block_started=np.array([begins]),
        block_remaining=np.array([2]),
        tokens=torch.zeros(1, 5, dtype=torch.int64),
        window=torch.arange(4)[None],
        committed=torch.tensor([[True, True, False, False]]),
    )
    again_predicted = torch.tensor([[0.1, 0.2, 0.95, 0.95]])
    evidence = SimpleNamespace(leave_one_out=SimpleNamespace(probability=lambda tokens: again_predicted))
    proposal: Any = SimpleNamespace(score=torch.tensor([[-torch.inf, -torch.inf, 0.9, 0.8]]), evidence=evidence)
    found = Wino().revise(~canvas.committed, proposal, canvas, State(torch.tensor([[2]])))
    assert found.reopen is not None
    assert found.reopen[0].nonzero()[:, 0].tolist() == again


test_verifying_nothing_is_the_select_alone = as_the_select_alone(
    ("threshold:tau=0.4+wino:verify=0", "threshold:tau=0.4"),
    ("wino:draft=0.4,verify=0", "threshold:tau=0.4"),
    ("factor+wino:verify=0", "factor"),
)


def test_it_brings_a_threshold_where_the_spec_has_no_select() -> None:
    assert str(resolve("wino:draft=0.7").spec).startswith("confidence:of=raw+threshold:tau=0.7,")
    assert "factor" in str(resolve("wino+factor").spec)


test_bad_parameters = refused_specs(
    [("draft=1.2", r"draft must lie in \[0, 1\], got 1.2"), ("verify=-0.1", r"verify must lie in \[0, 1\], got -0.1")],
    before="wino:",
)
