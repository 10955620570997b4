"""Pictures on the masked loop: the published loops step by step, rows of any company, and every sampler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from pardec.models.errors import SpecError
from pardec.models.images.captioned import CaptionedImaging
from pardec.models.images.contracts import Condition, ImageLayout
from pardec.models.model import LanguageModel
from pardec.requests.image_layout import intersect
from pardec.requests.prompts import Row
from pardec.samplers import registry
from pardec.samplers.events import Event, Finished, Step
from pardec.samplers.masked.loop import decode
from pardec.samplers.request import Request
from pardec.samplers.rng import Keyed
from pardec.samplers.trace import PROMPT
from tests.grids import chequered
from tests.reference.naive_pictures import Half, picture
from tests.samplers.masked.test_contract import SPECS, drawn
from tests.samplers.toys import VOCAB, same, toy

NEWLINE, END, CODES = 1, 2, range(5, 13)
CAPTIONS = ["abc", "a", "fghde"]
ROWS, COLUMNS = 3, 2


class Imaging(CaptionedImaging):
    """Captions letter by letter; without one, two ids."""

    where = "nowhere"

    def ids(self, caption: str | None) -> list[int]:
        return [3, 4] if caption is None else [13 + ord(letter) % 4 for letter in caption]


def painter(seed: int = 0, sharp: float = 1.0) -> LanguageModel:
    model = toy(seed=seed, sharp=sharp)
    layout = ImageLayout(ROWS, COLUMNS, row_end=NEWLINE, closing=(END,), ids=torch.tensor(CODES))
    return replace(model, imaging=Imaging("toy", layout, None, lambda: model.decoder.embedding))


def asked(model: LanguageModel, captions: Sequence[str], seeds: Sequence[int], **options: Any) -> Request:
    imaging = model.imaging
    assert imaging is not None
    mask = model.decoding_config.mask_id
    assert mask is not None
    negatives = options.pop("negatives", [None] * len(captions))
    pairs = zip(captions, negatives, strict=True)
    conditions = tuple(Condition(text=text, negative=negative) for text, negative in pairs)
    prefix, forced = imaging.prefix(conditions), imaging.layout.forced()
    rows = [Row(torch.full((n,), -1), torch.where(forced < 0, mask, forced)) for n in prefix.lengths]
    return Request(
        tuple(row.canvas for row in rows),
        tuple(prefix.lengths),
        block_length=len(forced),
        source=Keyed(tuple(seeds)),
        conditions=conditions,
        prefix=prefix,
        allowed=intersect(imaging.layout, None, rows, model.vocab_size),
        **options,
    )


def told(model: LanguageModel, spec: str, captions: Sequence[str], **options: Any) -> list[Event]:
    seeds = options.pop("seeds", range(100, 100 + len(captions)))
    return list(decode(model, registry.resolve(spec, "masked"), asked(model, captions, seeds, **options)))


def draw(model: LanguageModel, spec: str, captions: Sequence[str], **options: Any) -> Finished:
    last = told(model, spec, captions, **options)[-1]
    assert isinstance(last, Finished)
    return last


@pytest.mark.parametrize("cfg", [None, 3.5])
@pytest.mark.parametrize("cache", [None, (0.9, 5, 0.3), (0.6, 3, 0.0)])
@pytest.mark.parametrize(("published", "temperature"), [("dimoo", 1.0), ("dimoo", 0.7), ("mmada", 1.0)])
@pytest.mark.parametrize("caption", CAPTIONS)
def test_the_published_loop_step_by_step(
    caption: str, published: str, temperature: float, cache: tuple[float, int, float] | None, cfg: float | None
) -> None:
    model, steps = painter(seed=ord(caption[0]), sharp=0.6), 5
    anneal = {"dimoo": "none", "mmada": "product"}[published]
    spec = f"maskgit:steps={steps},noise={temperature},anneal={anneal}"
    if cache is not None:
        spec += f"@mlcache:reuse={cache[0]},refresh={cache[1]}" + (",warmup=0" if cache[2] == 0 else "")
    events = told(model, spec, [caption], cfg=cfg, temperature=temperature)
    imaging = model.imaging
    assert isinstance(imaging, Imaging)
    start = max(len(imaging.ids(caption)), len(imaging.ids(None)))
    source = Keyed((100,))

    def uniform(step: int, cell: int, purpose: str, width: int) -> np.ndarray:
        at = torch.tensor([[start + cell]])
        if purpose == "transfer":
            return source.uniform(np.array([0]), np.array([step]), at, purpose)[0].numpy()
        return source.uniform(np.array([0]), np.array([step]), at, purpose, VOCAB)[0, 0].numpy()[list(CODES)]

    texts = [caption] if cfg is None else [caption, None]
    halves = [Half(model, imaging.ids(text), list(CODES)) for text in texts]
    forced, mask = imaging.layout.forced(), VOCAB - 1
    grid = torch.where(forced < 0, mask, forced).tolist()
    truth = picture(
        halves,
        grid,
        mask,
        steps,
        uniform,
        scale=0.0 if cfg is None else cfg - 1,
        temperature=temperature,
        published=published,
        cache=cache,
    )
    ours = [
        np.where(event.open[0], mask, event.tokens[0])[start:].tolist() for event in events if isinstance(event, Step)
    ]
    assert ours == truth


@pytest.mark.parametrize(("spec", "cfg"), chequered([spec for spec in SPECS if drawn(spec, 3) == 0], [None, 2.0]))
def test_every_sampler_draws(spec: str, cfg: float | None) -> None:
    """Codes in cells, given tokens between them, rows alone as in company; or a stage that says why it cannot."""
    sampler = registry.resolve(spec, "masked")
    if sampler.cache.attention is not None:
        return
    model = painter(sharp=1.2)
    options: dict[str, Any] = {"cfg": cfg, "temperature": 0.8 * (drawn(spec, 2))}
    if sampler.inputs or sampler.query is not None or sampler.reading or sampler.moving is not None:
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


@pytest.mark.parametrize("options", [{}, {"cfg": 2.5}, {"cfg": 2.5, "negatives": ["hhhhhhhh", None, "b"]}])
@pytest.mark.parametrize("cache", ["dual", "prefix", "dkv", "mlcache", "mlcache:reuse=0"])
def test_refreshing_at_every_step_is_no_cache(cache: str, options: dict[str, Any]) -> None:
    spec = cache if "reuse=0" in cache else f"{cache}:refresh=1"
    plain, cached = (
        draw(painter(sharp=1.1), f"maskgit:steps=5,noise=1@{each}", CAPTIONS, temperature=1.0, **options)
        for each in ("none", spec)
    )
    assert (plain.tokens == cached.tokens).all()
    assert (plain.trace.commit_step == cached.trace.commit_step).all()


def test_the_cache_feeds_a_tenth_between_refreshes() -> None:
    done = draw(painter(), "maskgit:steps=6,noise=1@mlcache:reuse=0.9,refresh=3,warmup=1", ["abc"], temperature=1.0)
    assert [len(each) for each in done.trace.fed[0]] == [13, 13, 2, 2, 13, 2]


def test_a_negative_prompt_takes_the_place_of_no_caption() -> None:
    model = painter(sharp=1.2)
    one, other, third = (
        draw(model, "fixed:steps=3", ["abc"], cfg=4.0, negatives=[text]).tokens[0, -10:].tolist()
        for text in (None, "hg", "abc")
    )
    plain = draw(model, "fixed:steps=3", ["abc"]).tokens[0, -10:].tolist()
    assert third == plain
    assert len({tuple(one), tuple(other), tuple(plain)}) == 3
