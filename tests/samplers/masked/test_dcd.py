"""`dcd`: a window of masks that moves over the row, compared with its naive version on recorded checkpoints."""

from __future__ import annotations

import pytest

from tests.reference import naive_blocks as naive
from tests.samplers.block_parity import Make, agree


def rule(masks: int | None = None, most: int | None = None) -> Make:
    def make(*sizes: int) -> naive.Dcd:
        made = naive.Dcd(*sizes)
        made.masks, made.most = masks, most
        return made

    return make


RULES = {"dcd": rule(), "dcd:masks=3,most=5": rule(masks=3, most=5), "dcd:most=3": rule(most=3)}


@pytest.mark.parametrize("spec", RULES)
@pytest.mark.parametrize("name", ["llada", "dream"])
@pytest.mark.covers(1)
def test_it_is_the_naive_rule_step_by_step(name: str, spec: str) -> None:
    agree(name, spec, RULES[spec])
