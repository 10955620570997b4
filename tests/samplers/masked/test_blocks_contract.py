"""The contract of every block stage: other stages work, refusals by name."""

from __future__ import annotations

import pytest

from pardec.models.errors import SpecError
from pardec.samplers import registry
from tests.samplers.toys import MASK, fill, names, prompts, toy

BLOCKS = [{"adablock": "adablock:delimiters=1-2-3-4"}.get(name, name) for name in names("block")]


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("cache", ["none", "dual", "prefix", "vicinity", "dkv"])
@pytest.mark.parametrize(
    "rest", ["threshold:tau=0.3", "edit:tau=0.3+threshold:tau=0.3", "klass", "remdm+threshold:tau=0.3+eos"]
)
@pytest.mark.covers(2)
def test_each_goes_with_the_other_stages(block: str, cache: str, rest: str) -> None:
    got = fill(toy("dream", sharp=1.2), f"{block}+{rest}@{cache}", prompts((3, 6)), 13)
    assert not (got.tokens == MASK).any()


@pytest.mark.parametrize("block", BLOCKS)
def test_what_fixes_blocks_refuses_it_by_name(block: str) -> None:
    name = block.partition(":")[0]
    for other in ("fixed:steps=4", "wino"):
        with pytest.raises(SpecError, match=name):
            registry.resolve(f"{block}+{other}", "masked")
    for family in ("wedlm", "nemotron") if name == "multiblock" else ("sdar", "wedlm", "nemotron"):
        cache = {"wedlm": "window:slide=false", "nemotron": "causal", "sdar": "block"}[family]
        with pytest.raises(SpecError, match=name):
            fill(toy(family), f"{block}+threshold@{cache}", prompts((3,)), 8)
    with pytest.raises(SpecError, match="window moves the block itself"):
        registry.resolve(f"{block}+threshold@window", "masked")
    with pytest.raises(SpecError, match="two|one is allowed"):
        registry.resolve(f"{block}+{'dcd' if name == 'dsb' else 'dsb'}+threshold", "masked")
