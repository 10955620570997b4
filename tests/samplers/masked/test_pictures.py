"""Images in the masked loop: every sampler draws or states its reason, and negative prompts."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from pardec.models.errors import SpecError
from pardec.samplers import registry
from pardec.samplers.trace import PROMPT
from tests.grids import pairwise
from tests.samplers.masked.test_contract import SPECS, drawn
from tests.samplers.masked_pictures import CAPTIONS, CODES, asked, draw, painter
from tests.samplers.toys import same


def axes(spec: str, cfg: float | None) -> tuple[Any, ...]:
    """The axes of a case: the part before the cache, and the cache with or without guidance."""
    head, cache = spec.split("@")
    return head, (cache, cfg)


@pytest.mark.parametrize(
    ("spec", "cfg"), pairwise(product([spec for spec in SPECS if drawn(spec, 3) == 0], [None, 2.0]), axes, 1)
)
def test_every_sampler_draws(spec: str, cfg: float | None) -> None:
    """Codes in cells, given tokens between them, rows alone and in batches; or a stage that states why it cannot."""
    sampler = registry.resolve(spec, "masked")
    if sampler.cache.attention is not None:
        return
    model = painter(sharp=1.2)
    options: dict[str, Any] = {"cfg": cfg, "temperature": 0.8 * (drawn(spec, 2))}
    if sampler.inputs or sampler.query is not None or sampler.reading or sampler.moving is not None or sampler.growing:
        with pytest.raises(SpecError, match="begin with its condition|the neighbours of image tokens|moves tokens"):
            draw(model, spec, CAPTIONS, **options)
        return
    whole = draw(model, spec, CAPTIONS, **options)
    imaging = model.imaging
    assert imaging is not None
    forced = imaging.layout.forced().numpy()
    for row, start in enumerate(asked(model, CAPTIONS, range(3), cfg=cfg).prompts):
        tokens = whole.tokens[row, start : start + len(forced)]
        assert (tokens[forced >= 0] == forced[forced >= 0]).all()
        assert set(tokens[forced < 0].tolist()) <= set(CODES)
        assert (whole.trace.commit_step[row, start : start + len(forced)][forced >= 0] == PROMPT).all()
    alone = draw(model, spec, CAPTIONS[1:2], seeds=[101], **options)
    assert same(alone, 0, whole, 1)
    assert whole.forward_rows == tuple(n * (1 if cfg is None else 2) for n in whole.nfe)


def test_a_negative_prompt_takes_the_place_of_no_caption() -> None:
    model = painter(sharp=1.2)
    one, other, third = (
        draw(model, "fixed:steps=3", ["abc"], cfg=4.0, negatives=[text]).tokens[0, -10:].tolist()
        for text in (None, "hg", "abc")
    )
    plain = draw(model, "fixed:steps=3", ["abc"]).tokens[0, -10:].tolist()
    assert third == plain
    assert len({tuple(one), tuple(other), tuple(plain)}) == 3
