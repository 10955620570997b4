"""The values that compressing caches decode, from the formulas: one row, head by head and group by group.

Every function takes the exact numbers of one chunk, [G, K, D] float64, and returns the decoded ones.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import torch

from pardec.models.model import LanguageModel
from pardec.models.plan import Plan, Visible

Numbers = np.ndarray
Read = Callable[[Numbers], Numbers]  # chunk -> what is read


def half(x: float, up: bool) -> float:
    """x in float16, rounded down or up."""
    near = np.float16(x)
    if (float(near) < x) if up else (float(near) > x):
        near = np.nextafter(near, np.float16(np.inf if up else -np.inf))
    return float(near)


def group(x: Numbers, bits: int, clip: float = 1.0) -> Numbers:
    """A group of numbers, encoded and decoded."""
    low, high = x.min(), x.max()
    low, high = (low + high) / 2 - (high - low) / 2 * clip, (low + high) / 2 + (high - low) / 2 * clip
    low = half(low, up=False)
    scale = half((high - low) / (2**bits - 1), up=True)
    if scale == 0:
        return np.full_like(x, low)
    return np.clip(np.rint((x - low) / scale), 0, 2**bits - 1) * scale + low


def by_channel(bits: int) -> Read:
    def read(x: Numbers) -> Numbers:
        out = np.empty_like(x)
        for head, channel in product(range(x.shape[1]), range(x.shape[2])):
            out[:, head, channel] = group(x[:, head, channel], bits)
        return out

    return read


def by_token(bits: int, size: int) -> Read:
    def read(x: Numbers) -> Numbers:
        out = np.empty_like(x)
        for token, head, first in product(range(len(x)), range(x.shape[1]), range(0, x.shape[2], size)):
            out[token, head, first : first + size] = group(x[token, head, first : first + size], bits)
        return out

    return read


def int8(x: Numbers) -> Numbers:
    out = np.empty_like(x)
    for token, head in product(range(len(x)), range(x.shape[1])):
        scale = half(np.abs(x[token, head]).max() / 127, up=True)
        out[token, head] = np.rint(x[token, head] / scale) * scale
    return out


def pruned(sparsity: float) -> Read:
    def read(x: Numbers) -> Numbers:
        out = np.zeros_like(x)
        for token, head in product(range(len(x)), range(x.shape[1])):
            row = x[token, head]
            stays = sorted(range(len(row)), key=lambda at: -abs(row[at]))[: len(row) - int(sparsity * len(row))]
            out[token, head, stays] = row[stays]
        return out

    return read


def gear(bits: int, sparsity: float, rank: int, *, token: bool) -> Read:
    def read(x: Numbers) -> Numbers:
        out, quantize = np.empty_like(x), by_token(bits, x.shape[2]) if token else by_channel(bits)
        for head in range(x.shape[1]):
            part = x[:, head]
            mean = np.broadcast_to(part.mean(1 if token else 0, keepdims=True), part.shape)
            distance = torch.from_numpy(np.abs(part - mean)).to(torch.bfloat16).double().numpy()
            far = np.argsort(-distance, axis=None, kind="stable")[: round(sparsity * part.size)]
            even = part.copy().ravel()
            even[far] = mean.ravel()[far]
            even = even.reshape(part.shape)
            quantized = quantize(even[:, None])[:, 0]
            error = (even - quantized).ravel()
            error[far] = 0
            error = error.reshape(part.shape)
            a = np.linalg.svd(error)[0][:, :rank]
            b = error.T @ a
            whole = quantized + a.astype(np.float16).astype(float) @ b.astype(np.float16).astype(float).T
            whole.ravel()[far] = part.ravel()[far].astype(np.float16)
            out[:, head] = whole
        return out

    return read


def hadamard(size: int) -> Numbers:
    """Sylvester's matrix, normalised: entry (i, j) is -1 to the power of the number of 1 bits that i and j share."""
    signs = [[(-1) ** (i & j).bit_count() for j in range(size)] for i in range(size)]
    return np.array(signs) / size**0.5


def rotated(bits: int, size: int, clip: float, heads: int, order: Numbers | None = None) -> Read:
    """K/V after rotation of `heads` heads together, channels in `order` [K / heads, heads * D], in groups of `size`."""

    def read(x: Numbers) -> Numbers:
        width = heads * x.shape[2]
        spread = x.reshape(len(x), -1, width) @ hadamard(width)
        for token, block in product(range(len(x)), range(spread.shape[1])):
            at = np.arange(width) if order is None else order[block]
            row = spread[token, block, at]
            row = np.concatenate([group(row[i : i + size], bits, clip) for i in range(0, width, size)])
            spread[token, block, at] = row
        return (spread @ hadamard(width)).reshape(x.shape)

    return read


def channel_order(chunks: Numbers, heads: int) -> Numbers:
    """[K / heads, heads * D] of the rotated channels of chunks [n, K, D], by sums of magnitudes, ascending."""
    spread = chunks.reshape(len(chunks), -1, heads * chunks.shape[2]) @ hadamard(heads * chunks.shape[2])
    return np.argsort(np.abs(spread).sum(0), axis=-1, kind="stable")


def rotary(keys: Numbers, first: int, frequencies: Numbers, *, back: bool = False) -> Numbers:
    """Rotates keys [n, K, D] of the positions from `first` on by the rotary embedding, or back."""
    angle = (first + np.arange(len(keys)))[:, None, None] * frequencies * (-1 if back else 1)
    a, b = np.split(keys, 2, -1)
    return np.concatenate((a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)), -1)


Encode = Callable[[Numbers, Numbers, int], tuple[Numbers, Numbers]]  # K and V [n, K, D] of whole chunks, the prompt's


def decode(
    model: LanguageModel, prompt: list[int], new: int, settled: Callable[[int], int], sinks: int, encode: Encode
) -> tuple[list[int], list[float]]:
    """Greedy tokens and their logits; before every token the whole past is encoded again.

    `encode` gets the exact K and V of a layer's encoded slots without the sinks, and how many were encoded with the
    prompt.
    """
    text, highest, at = list(prompt), [], 0
    cache = model.new_cache(1, len(prompt) + new)
    exact: list[list[torch.Tensor]] = [
        [part[0, :0].double() for part in pair] for pair in zip(cache.k, cache.v, strict=True)
    ]
    for _ in range(new):
        end = settled(len(text)) if at else 0
        for layer, pair in enumerate(exact):
            for part, numbers in zip((cache.k[layer], cache.v[layer]), pair, strict=True):
                part[0, : len(numbers)] = numbers.to(part)
            if end:
                arrays = [numbers[sinks:end].numpy() for numbers in pair]
                both = encode(*arrays, settled(len(prompt)) - sinks)
                for part, read in zip((cache.k[layer], cache.v[layer]), both, strict=True):
                    part[0, sinks:end] = torch.from_numpy(read).to(part)
        ids = torch.tensor([text[at:]])
        order = torch.arange(at, len(text))[None]
        lengths, want = torch.tensor([len(text)]), torch.tensor([[len(text) - at - 1]])
        logits = model.forward(Plan(ids, order, order, Visible.causal(), lengths, want), cache).logits()[0, 0]
        for layer, pair in enumerate(exact):
            for which, part in enumerate((cache.k[layer], cache.v[layer])):
                pair[which] = torch.cat((pair[which], part[0, at : len(text)].double()))
        at = len(text)
        text.append(int(logits.argmax()))
        highest.append(float(logits.max()))
    return text, highest
