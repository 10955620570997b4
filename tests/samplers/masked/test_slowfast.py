"""`slowfast`: slow steps that look where a fast phase may go, by its naive version on recorded checkpoints."""

from __future__ import annotations

import pytest

from tests.reference import naive_blocks as naive
from tests.samplers.block_parity import Make, agree

RULES: dict[str, Make] = {
    "slowfast:tau=0.05": lambda *sizes: naive.SlowFast(*sizes, tau=0.05),
    "slowfast:tau=0.1,steps=3,all=true": lambda *sizes: naive.SlowFast(*sizes, tau=0.1, steps=3, whole=True),
}


@pytest.mark.parametrize("spec", RULES)
@pytest.mark.parametrize("name", ["llada", "dream"])
@pytest.mark.covers(1)
def test_it_is_the_naive_rule_step_by_step(name: str, spec: str) -> None:
    agree(name, spec, RULES[spec])
