"""Tiny random image models, their samples, and their enumerated distribution over images."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pardec.models.decoder import Decoder, DecoderConfig
from pardec.models.images.contracts import Condition
from pardec.models.images.llamagen import Captions, LlamaGenImaging
from pardec.models.model import DecodingConfig, LanguageModel
from pardec.models.plan import Plan, Visible
from pardec.requests import draft_models
from pardec.samplers import registry
from pardec.samplers.events import Finished
from pardec.samplers.ops.distribution import filter_logits
from pardec.samplers.request import Request
from pardec.samplers.rng import Keyed
from pardec.samplers.speculative.contracts import SpeculativeSampler
from pardec.samplers.speculative.loop import decode

PLACES, FEATURES = 3, 6


def toy_pictures(
    seed: int = 0, side: int = 2, vocab: int = 4, sharp: float = 1.0, *, layers: int = 2, knock: int | None = None
) -> LanguageModel:
    """LlamaGen with random weights; `knock` gives a similar model, as a drafter is similar to its target."""
    decoder = Decoder(
        DecoderConfig(
            vocab=vocab,
            width=16,
            layers=layers,
            heads=2,
            kv_heads=2,
            head_dim=8,
            mlp_width=24,
            norm_eps=1e-6,
            frequencies=(1.0, 0.3),
            grid=side,
        )
    )
    captions = Captions(PLACES, FEATURES, 16)
    drawn, other = np.random.RandomState(seed), np.random.RandomState(knock)
    with torch.no_grad():
        for weight in (*decoder.parameters(), *captions.parameters()):
            if weight.dim() > 1:
                weight.copy_(torch.from_numpy(drawn.standard_normal(weight.shape)) * 0.5)
            if weight.dim() > 1 and knock is not None:
                weight.add_(torch.from_numpy(other.standard_normal(weight.shape)) * 0.05)
        decoder.head.weight.mul_(sharp)
        captions.uncond_embedding.mul_(2)
    for part in (decoder, captions):
        part.eval().requires_grad_(False)
    return LanguageModel(
        decoder,
        DecodingConfig(None, (), 0, None, 1, "causal"),
        {},
        None,
        "toy pictures",
        None,
        "llamagen",
        torch.device("cpu"),
        torch.float32,
        vocab,
        layers,
        16,
        imaging=LlamaGenImaging(captions, side, name="toy pictures"),
    )


def features(lengths: Sequence[int], seed: int = 0) -> list[Tensor]:
    """Random caption features of these lengths, in the form of a text encoder's output."""
    drawn = np.random.RandomState(seed)
    return [torch.from_numpy(drawn.standard_normal((size, FEATURES)) * 2).float() for size in lengths]


def asked(model: LanguageModel, captions: Sequence[Tensor], seeds: Iterable[int], **options: Any) -> Request:
    """A request for one picture per caption."""
    assert model.imaging is not None
    conditions = tuple(Condition(features=caption) for caption in captions)
    prefix = model.imaging.prefix(conditions)
    rows, columns = model.imaging.layout.grid
    canvases = tuple(torch.full((length + rows * columns,), -1) for length in prefix.lengths)
    return Request(
        canvases,
        tuple(prefix.lengths),
        block_length=1,
        source=Keyed(tuple(seeds)),
        conditions=conditions,
        prefix=prefix,
        **options,
    )


def draw(
    model: LanguageModel,
    spec: str | SpeculativeSampler,
    captions: Sequence[Tensor],
    *,
    seeds: Iterable[int] | None = None,
    temperature: float = 0.0,
    **options: Any,
) -> Finished:
    """Samples images; by default row i has the seed 100 + i. Keywords set other fields of `Request`: cfg, top_k."""
    made = registry.resolve(spec, "ar", sampling=temperature > 0)
    options.setdefault("draft_model", draft_models.for_text(made, model))
    given = asked(model, captions, seeds or range(100, 100 + len(captions)), temperature=temperature, **options)
    *_, last = decode(model, made, given, steps=False)
    assert isinstance(last, Finished)
    return last


def codes(done: Finished, captions: Sequence[Tensor]) -> np.ndarray:
    """The codes [B, cells] of the images."""
    cells = int(done.trace.lengths[0]) - len(captions[0])
    return np.stack([row[len(caption) :][:cells] for row, caption in zip(done.tokens, captions, strict=True)])


# --- the truth ---


def logits(model: LanguageModel, caption: Tensor, pictures: Tensor, *, cfg: float | None = None) -> Tensor:
    """Raw logits [N, cells, V] of whole images [N, cells]; each half of guidance is run separately, without a cache."""
    imaging: Any = model.imaging
    weight = imaging.embedder.uncond_embedding
    halves = [
        _half(model, imaging.embedder(said), pictures)
        for said in (caption, weight[len(weight) - len(caption) :])[: 1 if cfg is None else 2]
    ]
    return halves[0] if cfg is None else halves[1] + cfg * (halves[0] - halves[1])


def _half(model: LanguageModel, states: Tensor, pictures: Tensor) -> Tensor:
    count, size = len(pictures), len(states)
    tokens = torch.cat((torch.full((count, size), -1), pictures), 1)
    soft = torch.nn.functional.pad(states, (0, 0, 0, pictures.shape[1])).expand(count, -1, -1)
    plan = replace(Plan.full(tokens, Visible.causal()), soft=soft, origin=torch.full((count,), size))
    with torch.inference_mode():
        return model.decoder(plan).logits()[:, size - 1 : -1]


def joint(
    model: LanguageModel,
    caption: Tensor,
    *,
    cfg: float | None = None,
    temperature: float = 1.0,
    top_k: int | None = None,
) -> np.ndarray:
    """The true probability of every image, [V] * cells."""
    assert model.imaging is not None
    vocab, cells = model.vocab_size, model.imaging.layout.tokens
    every = torch.tensor(list(product(range(vocab), repeat=cells)))
    raw = logits(model, caption, every, cfg=cfg)
    kept = filter_logits(raw, temperature=temperature, top_k=top_k, top_p=None, order="top_k")
    each = kept.double().softmax(-1).gather(-1, every[..., None])[..., 0]
    found: np.ndarray = each.prod(1).numpy().reshape((vocab,) * cells)
    return found


SIDE, VOCAB = 4, 9  # of the pictures that drafters are tested on
CAPTIONS = features((3, 1, 2, 3), seed=4)
GUIDED = {"cfg": 3.0}


@cache
def target() -> LanguageModel:
    """The model of these images."""
    return toy_pictures(5, SIDE, VOCAB, 0.7, layers=4)
