"""The contract of every method of token maps: a row is the same alone and in a batch, and refusals by name."""

from __future__ import annotations

from typing import Any

import pytest

from pardec.models.errors import SpecError
from pardec.samplers.registry import resolve
from tests.samplers.scale_toys import generate
from tests.samplers.scale_toys import model as toy


@pytest.mark.parametrize("spec", ["sequential", "fastvar:layer=1", "code:refiner=x,steps=2"])
@pytest.mark.parametrize("cfg", [None, 2.0])
def test_a_row_alone_is_the_row_in_a_batch(spec: str, cfg: float | None) -> None:
    model, labels, seeds = toy(), (3, -1, 0, 3), (1, 2, 3, 2)
    shared: dict[str, Any] = {"cfg": cfg, "refiner": toy(seed=9, layers=1, name="small"), "top_p": 0.9}
    together = generate(model, spec, labels, seeds, **shared)
    for row, (label, seed) in enumerate(zip(labels, seeds, strict=True)):
        alone = generate(model, spec, (label,), (seed,), **shared)
        assert alone.tokens[0].tolist() == together.tokens[row].tolist()
        assert alone.forward_rows[0] == together.forward_rows[row]
        assert alone.tokens_fed[0] == together.tokens_fed[row]
    assert len({tuple(row) for row in together.tokens.tolist()}) == 4


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("sequential+code", "has several parts, and a sampler of token maps has one"),
        ("mar", "is for models whose tokens are vectors"),
    ],
)
def test_specs_that_cannot_work_are_refused(spec: str, message: str) -> None:
    with pytest.raises(SpecError, match=message.replace("(", r"\(")):
        resolve(spec, "scales")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("code", "refiner is missing"),
        ("code:refiner=x,steps=5", "steps=5 does not fit the 4 scales of toy"),
        ("code:refiner=x,steps=-5", "steps=-5 does not fit the 4 scales of toy"),
        ("fastvar:scales=4", "scales=4, and toy has 4 scales"),
        ("fastvar:layer=3", "layer=3, and toy has 3 layers"),
    ],
)
def test_methods_refuse_models_that_they_do_not_fit(spec: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        generate(toy(), spec)
