"""`hydra`: heads that also read the tokens drafted before; common tests are in test_heads_contract.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from pardec.models.errors import ModelError, SpecError
from pardec.samplers import registry
from tests.grids import chequered
from tests.samplers.ar_toys import rows
from tests.samplers.head_drafts import (
    NEW,
    PROMPTS,
    SHAPES,
    as_of_whole_texts,
    module,
    run,
    spec_of,
    target,
    truth,
)


@pytest.mark.parametrize(("variant", "grounded"), [("hydra", True), ("plain", False), ("hydra++", True)])
def test_heads_that_read_the_path_count_forwards(variant: str, grounded: bool, tmp_path: Path) -> None:
    own = module(variant, target(), tmp_path)
    done = run(target(), spec_of(own), PROMPTS, NEW, draft_model=own)
    assert rows(done) == truth()
    assert min(max(row) for row in done.trace.drafted) > 0
    assert (sum(done.draft_forwards) > 0) == grounded


@pytest.mark.parametrize(
    ("kind", "shape", "temperature"), chequered(["hydra", "plain", "hydra++"], SHAPES, [0.0, 1.0], count=3)
)
@pytest.mark.covers(1)
def test_every_head_says_what_it_says_of_the_whole_text(
    kind: str, shape: str, temperature: float, tmp_path: Path
) -> None:
    as_of_whole_texts(kind, shape, temperature, tmp_path)


def test_it_has_to_be_named_and_to_have_heads() -> None:
    with pytest.raises(SpecError, match="hydra: name is missing"):
        registry.resolve("hydra", "ar")
    with pytest.raises(ModelError, match="the request has no draft module"):
        run(target(), "hydra:name=toy", PROMPTS, NEW, draft_model=target())
