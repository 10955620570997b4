"""`wino`: drafts freely, verifies each token by a prediction that leaves it out, and takes unsure ones back."""

from __future__ import annotations

from typing import Any

import pytest

from pardec.samplers.registry import resolve
from tests.reference import naive_revise as naive
from tests.samplers.revise_checks import LENGTHS, NEW, compare
from tests.samplers.spec_checks import refused_specs
from tests.samplers.toys import BLOCK, fill, prompts, same, toy


@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize("size", [BLOCK, 8])
@pytest.mark.covers(1)
def test_it_is_the_naive_rule(family: str, size: int) -> None:
    changed = 0
    for seed in range(3):
        _, differs = compare("wino:draft=0.4,verify=0.8", naive.wino, family, size, seed, draft=0.4, verify=0.8)
        changed += differs
    assert changed, "nothing was ever revoked: the test shows nothing"


@pytest.mark.parametrize("cache", ["none", "prefix", "dual", "dual:refresh=2"])
@pytest.mark.parametrize("family", ["llada", "dream", "sdar", "shifted-sdar"])
@pytest.mark.parametrize(
    ("spec", "base"),
    [
        ("threshold:tau=0.4+wino:verify=0", "threshold:tau=0.4"),
        ("wino:draft=0.4,verify=0", "threshold:tau=0.4"),
        ("factor+wino:verify=0", "factor"),
    ],
)
@pytest.mark.covers(2)
def test_verifying_nothing_is_the_select_alone(spec: str, base: str, family: str, cache: str) -> None:
    model, given = toy(family, sharp=1.2), prompts(LENGTHS)
    one, other = (fill(model, f"{text}@{cache}", given, NEW) for text in (spec, base))
    assert all(same(one, row, other, row) for row in range(3))


def test_it_brings_a_threshold_where_the_spec_has_no_select() -> None:
    assert str(resolve("wino:draft=0.7").spec).startswith("confidence:of=raw+threshold:tau=0.7,")
    assert "factor" in str(resolve("wino+factor").spec)


@pytest.mark.parametrize("cache", ["none", "prefix", "dual", "dual:refresh=3"])
@pytest.mark.parametrize(
    ("family", "distribution"),
    [("llada", {}), ("shifted-sdar", {}), ("dream", {"temperature": 0.7}), ("sdar", {"cfg": 1.5})],
)
@pytest.mark.covers(1)
def test_a_row_alone_is_the_row_in_a_ragged_batch(family: str, distribution: dict[str, Any], cache: str) -> None:
    model, given, spec = toy(family, sharp=1.2), prompts(LENGTHS), f"wino:draft=0.4,verify=0.7@{cache}"
    whole = fill(model, spec, given, NEW, **distribution)
    for row in range(3):
        alone = fill(model, spec, [given[row]], NEW[row], seeds=[100 + row], **distribution)
        assert same(alone, 0, whole, row)


test_bad_parameters = refused_specs(
    [("draft=1.2", r"draft must lie in \[0, 1\], got 1.2"), ("verify=-0.1", r"verify must lie in \[0, 1\], got -0.1")],
    before="wino:",
)
