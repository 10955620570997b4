"""Tiny random models and requests for the tests of this folder, the same on every machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from pardec.models.caches.kv_cache import KVCache
from pardec.models.decoder import Decoder, DecoderConfig
from pardec.models.decoder_config import ExpertsConfig
from pardec.models.errors import SpecError
from pardec.models.model import Attention, DecodingConfig, LanguageModel
from pardec.models.plan import Hidden, Plan
from pardec.samplers import registry
from pardec.samplers.events import Event, Finished
from pardec.samplers.masked.loop import decode
from pardec.samplers.request import Request
from pardec.samplers.rng import Keyed, Source

VOCAB = 20
MASK, EOS, PAD = VOCAB - 1, VOCAB - 2, VOCAB - 3
BLOCK = 4
# Families by the two facts that decoding sees.
FAMILIES: dict[str, tuple[Literal[0, 1], Attention]] = {
    "llada": (0, "bidirectional"),
    "dream": (1, "bidirectional"),
    "sdar": (0, "block-causal"),
    "shifted-sdar": (1, "block-causal"),
}
# Those whose attention follows the canvas, and one whose MLPs are experts, too.
EVERY_FAMILY: dict[str, tuple[Literal[0, 1], Attention]] = {
    **FAMILIES,
    "llada2": (0, "block-causal"),
    "wedlm": (0, "windowed-causal"),
    "nemotron": (0, "causal-prefix"),
    "sdlm": (1, "causal-prefix"),
}
EXPERTS = ExpertsConfig(count=4, top=2, width=8, sparse=(False, True), scores="sigmoid", bias="choice", shared_width=8)


def draw_weights(decoder: Any, seed: int, sharp: float) -> None:
    """Draws the matrices of a decoder; `sharp` multiplies its logits."""
    drawn = np.random.RandomState(seed)  # the one stream that numpy promises never to change
    with torch.no_grad():
        for weight in decoder.parameters():
            if weight.dim() > 1:
                weight.copy_(torch.from_numpy(drawn.standard_normal(weight.shape)) * 0.5)
        decoder.head.weight.mul_(sharp)


def toy(
    family: str = "llada", *, seed: int = 0, vocab: int = VOCAB, sharp: float = 0.25, width: int = 16
) -> LanguageModel:
    """Two layers with random weights; `sharp` scales the logits. The last three ids are pad, end and mask."""
    shift, attention = EVERY_FAMILY[family]
    experts = EXPERTS if family == "llada2" else None
    shape = {"layers": 2, "heads": 2, "kv_heads": 1, "head_dim": 8, "mlp_width": 24}
    decoder = Decoder(
        DecoderConfig(
            vocab=vocab, width=width, norm_eps=1e-6, frequencies=(1.0, 0.3, 0.1, 0.03), experts=experts, **shape
        )
    )
    draw_weights(decoder, seed, sharp)
    decoder.eval().requires_grad_(False)
    block = BLOCK if attention == "block-causal" else None
    decoding_config = DecodingConfig(vocab - 1, (vocab - 2,), vocab - 3, None, shift, attention, block)
    where = {"path": None, "device": torch.device("cpu"), "dtype": torch.float32}
    return LanguageModel(
        decoder, decoding_config, {}, None, "toy", family="toy", vocab_size=vocab, layers=2, width=width, **where
    )


class Altered:
    """A stack whose head's output is changed by `change`."""

    def __init__(self, inner: Any, change: Callable[[Tensor], Tensor]) -> None:
        self.inner, self.change = inner, change

    def __call__(self, plan: Plan, cache: KVCache | None = None) -> Hidden:
        hidden = self.inner(plan, cache)
        return replace(hidden, head=lambda states: self.change(hidden.head(states)))

    @property
    def embedding(self) -> Tensor:
        return self.inner.embedding

    def new_cache(self, batch: int, capacity: int) -> KVCache:
        return self.inner.new_cache(batch, capacity)

    def parameters(self) -> Any:
        return self.inner.parameters()


def drafter_named(name: str, autoregressive: LanguageModel) -> LanguageModel:
    """The draft model of this name: a masked one if that is "masked", else the autoregressive one."""
    return toy(vocab=autoregressive.vocab_size, sharp=1.0) if name == "masked" else autoregressive


def altered(model: LanguageModel, change: Callable[[Tensor], Tensor]) -> LanguageModel:
    """The model with its logits [M, V] changed."""
    return replace(model, decoder=Altered(model.decoder, change))


def biased(model: LanguageModel, token: int, amount: float) -> LanguageModel:
    """The model with one token made likelier everywhere."""
    bias = torch.zeros(model.vocab_size).index_fill(0, torch.tensor([token]), amount)
    return altered(model, lambda logits: logits + bias)


def prompts(lengths: Sequence[int], *, seed: int = 0, vocab: int = VOCAB) -> list[list[int]]:
    """Random prompts without special tokens."""
    drawn = np.random.RandomState(seed)
    return [drawn.randint(0, vocab - 3, size).tolist() for size in lengths]


def request(
    rows: Sequence[Sequence[int]], starts: Sequence[int], *, seeds: Sequence[int] | None = None, **options: Any
) -> Request:
    """A request for whole canvases; row i has the seed 100 + i by default."""
    source: Source = options.pop("source", None) or Keyed(tuple(seeds or range(100, 100 + len(rows))))
    options.setdefault("block_length", BLOCK)
    return Request(tuple(torch.tensor(row, dtype=torch.int64) for row in rows), tuple(starts), source=source, **options)


def run(model: LanguageModel, spec: str, asked: Request, *, steps: bool = False) -> Finished:
    """Decodes a request to its end."""
    *_, last = decode(model, registry.resolve(spec), asked, steps=steps)
    assert isinstance(last, Finished)
    return last


def events(model: LanguageModel, spec: str, asked: Request) -> list[Event]:
    return list(decode(model, registry.resolve(spec), asked))


def fill(
    model: LanguageModel, spec: str, given: Sequence[Sequence[int]], new: int | Sequence[int], **options: Any
) -> Finished:
    """Decodes `new` tokens after each prompt; in block-causal families blocks count from position 0."""
    counts = [new] * len(given) if isinstance(new, int) else new
    mask = model.decoding_config.mask_id
    assert mask is not None
    rows = [list(prompt) + [mask] * count for prompt, count in zip(given, counts, strict=True)]
    options.setdefault("absolute", model.decoding_config.attention == "block-causal")
    return run(model, spec, request(rows, [len(prompt) for prompt in given], **options))


def same(one: Finished, row: int, other: Finished, at: int) -> bool:
    """Whether row `row` of one result is row `at` of the other: tokens, commit steps, forwards."""
    length = int(one.trace.lengths[row])
    return (
        length == int(other.trace.lengths[at])
        and bool((one.tokens[row, :length] == other.tokens[at, :length]).all())
        and bool((one.trace.commit_step[row, :length] == other.trace.commit_step[at, :length]).all())
        and one.nfe[row] == other.nfe[at]
        and one.trace.fed[row] == other.trace.fed[at]
    )


def fill_alone(
    model: LanguageModel, spec: str, given: Sequence[Sequence[int]], new: Sequence[int], **options: Any
) -> Finished:
    """Asserts that each row of a ragged batch is the same alone."""
    whole = fill(model, spec, given, new, **options)
    for row, (prompt, count) in enumerate(zip(given, new, strict=True)):
        alone = fill(model, spec, [prompt], count, seeds=[100 + row], **options)
        assert same(alone, 0, whole, row), row
        assert alone.forward_rows[0] == whole.forward_rows[row], row
    return whole


class Table:
    """A stack that predicts position p by row p of a table of distributions [L, V], for any tokens."""

    def __init__(self, distributions: Tensor) -> None:
        self.logits = distributions.log()

    def __call__(self, plan: Plan, cache: KVCache | None = None) -> Hidden:
        places = torch.nn.functional.one_hot(plan.positions.clamp(min=0), len(self.logits)).float()
        return Hidden(plan, places, lambda states: self.logits[states.argmax(-1)])

    def new_cache(self, batch: int, capacity: int) -> KVCache:
        return KVCache(layers=1, batch=batch, capacity=capacity, kv_heads=1, head_dim=1)


def table(distributions: Tensor) -> LanguageModel:
    """A model of given distributions [L, V]; pad, end and mask are the last three ids."""
    size = distributions.shape[1]
    decoding_config = DecodingConfig(size - 1, (size - 2,), size - 3, None, 0, "bidirectional", None)
    where = {"path": None, "device": torch.device("cpu"), "dtype": torch.float32}
    return LanguageModel(
        Table(distributions),
        decoding_config,
        {},
        None,
        "table",
        family="table",
        vocab_size=size,
        layers=1,
        width=1,
        **where,
    )


NEEDS = {
    "grow": "grow:start=3,step=2,spare=1,enough=0.05,unsure=0.3",  # rows of a toy are short
    "learned": "learned:filter=tiny-dream,force=true",  # no filter was trained on a toy
    # Rows of a toy are shorter than what these leave alone by default.
    "adaptive_length": "adaptive_length:beyond=0,tau=0.4",
    "dpad": "dpad:k=3,window=6",
    "es": "es:depth1=0,depth2=0",  # toys have two layers
    "suffix": "suffix:window=2",
    "levenshtein": "levenshtein:delete=3,split=4",  # which tokens edit, its config does not say
}


def names(stage: str) -> list[str]:
    """The masked methods of one stage."""
    found = [card.name for card in registry.cards() if card.stage == stage and card.family == "masked"]
    return [NEEDS.get(name, name) for name in found]


@cache
def resolved(spec: str, family: Any = None, *, sampling: bool = False) -> Any:
    """The sampler of a spec, to look at, or None where the spec is refused."""
    try:
        return registry.resolve(spec, family, sampling=sampling)
    except SpecError:
        return None
