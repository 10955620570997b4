"""`wino`: drafts freely, verifies each token by its leave-one-out prediction, and masks failing ones again."""

from __future__ import annotations

import pytest
import torch

from pardec.samplers.registry import resolve
from tests.reference import naive_revise as naive
from tests.samplers.revise_checks import as_the_select_alone, compare
from tests.samplers.spec_checks import defaults_are, refused_specs
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


test_defaults_are_the_published_ones = defaults_are("wino", "wino:draft=0.6,verify=0.9")
