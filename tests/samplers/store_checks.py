"""Shared by the tests of caches that encode older K/V: models, and a loop that encodes its whole past again."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
import transformers
from torch import Tensor

from pardec.models.decoder import Decoder
from pardec.models.families import match
from pardec.models.kv_stores.cache import StoredCache
from pardec.models.kv_stores.contracts import ChunkShape, Codec
from pardec.models.model import DecodingConfig, LanguageModel
from pardec.models.plan import Plan
from pardec.samplers import registry
from tests.models.families.test_families import CAUSAL
from tests.models.toys import SMALL
from tests.reference import naive_stores as naive
from tests.samplers.ar_toys import prompts, rows, run, toy_ar

VOCAB = 8
LENGTHS, NEW = (3, 15, 1, 9), (16, 9, 18, 12)


@cache
def target() -> LanguageModel:
    """A random model in float64."""
    return toy_ar(3, VOCAB, 1.5, layers=3, dtype=torch.float64)


def texts() -> list[list[int]]:
    """Ragged prompts."""
    return prompts(LENGTHS, vocab=VOCAB)


def in_chunks(read: naive.Read, size: int, x: np.ndarray) -> np.ndarray:
    return np.concatenate([read(x[at : at + size]) for at in range(0, len(x), size)])


def check_tokens(spec: str, chunk: int, residual: int, sinks: int, encode: naive.Encode) -> None:
    """Asserts that each token equals that of a loop that encodes its whole past from scratch."""

    def settled(length: int) -> int:
        chunks = (length - residual - sinks) // chunk
        return sinks + chunk * chunks if chunks > 0 else 0

    done = run(target(), f"sequential@{spec}", texts(), NEW)
    for row, (prompt, new) in enumerate(zip(texts(), NEW, strict=True)):
        expected, _ = naive.decode(target(), prompt, new, settled, sinks, encode)
        assert rows(done)[row] == expected


def through(codec: Codec, x: Tensor) -> Tensor:
    """x [N, G, K, D] after encoding and decoding; all chunks belong to one row and calibrate it together."""
    shape = ChunkShape(*x.shape[1:], x.dtype)
    calibration = {name: part.expand(len(x), *part.shape) for name, part in codec.calibrate(x).items()}
    parts = codec.encode(x, calibration)
    for name, (sizes, dtype) in codec.layout(shape).items():
        assert (parts[name].shape, parts[name].dtype) == ((len(x), *sizes), dtype), name
    return codec.decode(parts, calibration, shape)


def of_family(case: str) -> LanguageModel:
    """A random model of this family, by the config that transformers publishes."""
    kind, changes = CAUSAL[case]
    config = getattr(transformers, f"{kind}Config")(**SMALL | {"num_hidden_layers": 2} | changes).to_dict()
    family = match(config)
    assert family is not None
    decoder = Decoder(family.decoder(config))
    drawn = torch.Generator().manual_seed(1)
    for name, weight in decoder.named_parameters():
        weight.data.normal_(1.0 if "norm" in name else 0.0, 0.3, generator=drawn)
    decoder.eval().requires_grad_(False)
    facts = {"path": None, "device": torch.device("cpu"), "dtype": torch.float32}
    return LanguageModel(
        decoder, DecodingConfig(None, (), 0, None, 1, "causal"), config, None, case, family=family.name, vocab_size=61,
        layers=2, width=48, **facts,
    )  # fmt: skip


def taught(model: LanguageModel, spec: str, tokens: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    """Logits [B, steps, V] after prompts of `sizes` [B] and after each later token, fed one by one."""
    stage = registry.resolve(f"sequential@{spec}", "ar").cache if spec else None
    batch, width = tokens.shape
    cache = model.new_cache(batch, width) if stage is None else stage.new_cache(model, batch, width)
    lengths, out = torch.tensor(sizes), []
    steps = width - max(sizes)
    order = torch.arange(max(sizes)).expand(batch, -1)
    slots = torch.where(order < lengths[:, None], order, -1)
    plan = Plan(tokens[:, : max(sizes)], slots, slots, model.visible(), lengths, lengths[:, None] - 1)
    out.append(model.forward(plan, cache).logits())
    for _ in range(steps):
        lengths = lengths + 1
        if isinstance(cache, StoredCache):
            cache.settle(lengths.numpy())
        at = lengths[:, None] - 1
        step = Plan(tokens.gather(1, at), at, at, model.visible(), lengths, torch.zeros_like(at))
        out.append(model.forward(step, cache).logits())
    return torch.cat(out, 1)
