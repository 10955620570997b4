"""A random masked model of images of six codes, requests for it, and a comparison with the published loops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from pardec.models.images.captioned import CaptionedImaging
from pardec.models.images.contracts import Condition, ImageLayout
from pardec.models.model import LanguageModel
from pardec.requests.images import intersect
from pardec.requests.prompts import Row
from pardec.samplers import registry
from pardec.samplers.events import Event, Finished, Step
from pardec.samplers.masked.loop import decode
from pardec.samplers.request import Request
from pardec.samplers.rng import Keyed
from tests.reference.naive_pictures import Half, picture
from tests.samplers.toys import VOCAB, toy

NEWLINE, END, CODES = 1, 2, range(5, 13)
CAPTIONS = ["abc", "a", "fghde"]
ROWS, COLUMNS = 3, 2


class Imaging(CaptionedImaging):
    """An image interface whose captions are encoded letter by letter; without a caption, two ids."""

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


def check_published(
    caption: str, published: str, temperature: float, cache: tuple[float, int, float] | None, cfg: float | None
) -> None:
    """Asserts that every step equals the published loop's, for one image with the same random numbers."""
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
