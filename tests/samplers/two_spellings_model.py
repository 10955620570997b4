"""A target that counts, with two spellings per digit, for tests of a judge of its states.

Ids 0..D-1 spell the digits, and D..2D-1 spell them again. After either spelling of x the target predicts x + 1 in the
first spelling, and next likeliest in the second: a second spelling does no harm, a wrong digit spoils the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch

from pardec.models.decoder import Decoder, DecoderConfig
from pardec.models.model import DecodingConfig, LanguageModel
from pardec.samplers.speculative.contracts import DecodeContext, Draft, Drafter, Uniforms

DIGITS, WIDTH = 4, 32
FREQUENCIES = (1.0, 0.3, 0.1, 0.03)


@cache
def counting() -> LanguageModel:
    """One layer: a head that copies the digit before, and a random MLP of both digits, which the logits do not read."""
    config = DecoderConfig(
        vocab=2 * DIGITS,
        width=WIDTH,
        layers=1,
        heads=2,
        kv_heads=1,
        head_dim=8,
        mlp_width=64,
        norm_eps=1e-6,
        frequencies=FREQUENCIES,
    )
    decoder: Any = Decoder(config)
    seeded, eye = np.random.RandomState(0), torch.eye(DIGITS)
    with torch.no_grad():
        for weight in decoder.parameters():
            if weight.dim() > 1:
                weight.zero_()
        decoder.embed.weight[:, :DIGITS] = eye.repeat(2, 1)
        decoder.embed.weight[DIGITS:, DIGITS] = 0.5
        layer, angle = decoder.layers[0], torch.tensor(FREQUENCIES)
        layer.qkv_weight[:4, :DIGITS] = 2.0  # constant queries and keys, which match at one position back alone
        layer.qkv_weight[16:20, :DIGITS], layer.qkv_weight[20:24, :DIGITS] = (
            2 * angle.cos()[:, None],
            2 * angle.sin()[:, None],
        )
        layer.qkv_weight[24 : 24 + DIGITS, :DIGITS] = eye
        layer.out_weight[8 : 8 + DIGITS, :DIGITS] = eye * 0.3
        layer.gate_up_weight[:, : 8 + DIGITS] = _normal(seeded, 128, 8 + DIGITS) * 0.5
        layer.down_weight[8 + DIGITS :] = _normal(seeded, WIDTH - 8 - DIGITS, 64) * 0.2
        decoder.head.weight[:DIGITS, :DIGITS] = eye.roll(1, 0) * 4
        decoder.head.weight[DIGITS:, :DIGITS] = eye.roll(1, 0) * 3
    decoder.eval().requires_grad_(False)
    where = {"path": None, "device": torch.device("cpu"), "dtype": torch.float32}
    config_ = DecodingConfig(None, (), 0, None, 1, "causal")
    return LanguageModel(
        decoder, config_, {}, None, "counting", family="toy", vocab_size=2 * DIGITS, layers=1, width=WIDTH, **where
    )


def _normal(seeded: np.random.RandomState, *shape: int) -> torch.Tensor:
    return torch.from_numpy(seeded.standard_normal(shape)).float()


def right(before: int, token: int) -> bool:
    """Whether `token` is a spelling of the digit after the digit of `before`."""
    return token % DIGITS == (before + 1) % DIGITS


def guess(before: int, u: float) -> int:
    """The drafter's token after `before`: with 2/5 the second spelling, with 1/4 a wrong digit, for a uniform u."""
    following = (before + 1) % DIGITS
    if u < 0.4:
        return DIGITS + following
    return (following + 1 + int(u * 97) % (DIGITS - 1)) % DIGITS if u < 0.65 else following


class Careless(Drafter):
    """Chains of guesses, each based on the one before."""

    def __init__(self, k: int = 6) -> None:
        self.k = k

    def propose(self, context: DecodeContext, room: np.ndarray, uniforms: Uniforms, state: Any) -> Draft:
        text, counts = context.text, np.minimum(room, self.k)
        where = torch.from_numpy(text.length)[:, None] + torch.arange(self.k)
        noise = uniforms.noise(where, "draft", 1)[..., 0].tolist()
        drafted = [chain(int(text.row(at)[-1]), row) for at, row in enumerate(noise)]
        return Draft.chain(text, torch.tensor(drafted), counts)


def chain(before: int, noise: Sequence[float]) -> list[int]:
    """A chain of guesses."""
    tokens: list[int] = []
    for u in noise:
        tokens.append(guess(tokens[-1] if tokens else before, u))
    return tokens
