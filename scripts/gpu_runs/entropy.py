"""Codes integers of known distributions in hardly more bits than their entropy: rANS (Duda, arXiv:1311.2540) in NumPy.

`LANES` states take turns over the symbols and share one stream of 16-bit words, so that a step is a few operations on
arrays. All arithmetic is on integers: what one machine encodes, any other decodes to the same symbols.
"""

from __future__ import annotations

import numpy as np

LANES = 2048
_BITS = 14  # the frequencies of a class add up to 2 to this power
_LEAST = 1 << 16  # a state is at least this, and less than 2**32


def frequencies(counts: np.ndarray) -> np.ndarray:
    """Frequencies [K, S] that add up to 2**14 in each class, at least 1 where a symbol occurs; from `counts` [K, S]."""
    counts = counts.astype(np.int64)
    counts[counts.sum(1) == 0, 0] = 1  # no symbol has this class
    found: np.ndarray = np.maximum((counts << _BITS) // counts.sum(1, keepdims=True), counts > 0)
    largest = found.argmax(1)
    found[np.arange(len(found)), largest] += (1 << _BITS) - found.sum(1)
    return found


def encode(symbols: np.ndarray, classes: np.ndarray, frequency: np.ndarray) -> bytes:
    """The symbols uint8 [N], each with the distribution of its class, uint8 [N]."""
    fill = -len(symbols) % LANES
    symbols = np.append(symbols, np.full(fill, frequency[0].argmax(), np.uint8)).reshape(-1, LANES)
    classes = np.append(classes, np.zeros(fill, np.uint8)).reshape(-1, LANES)
    width = frequency.shape[1]
    sizes = frequency.ravel().astype(np.uint64)
    starts = (frequency.cumsum(1) - frequency).ravel().astype(np.uint64)
    state = np.full(LANES, _LEAST, np.uint64)
    words = []
    for line, kinds in zip(symbols[::-1], classes[::-1], strict=True):  # a decoder meets the last symbol first
        at = kinds.astype(np.int64) * width + line
        size = sizes[at]
        full = state >= size << np.uint64(32 - _BITS)
        words.append(state[full].astype("<u2"))
        state[full] >>= np.uint64(16)
        state = (state // size << np.uint64(_BITS)) + state % size + starts[at]
    return state.astype("<u4").tobytes() + np.concatenate(words[::-1]).tobytes()


def decode(content: bytes, classes: np.ndarray, frequency: np.ndarray) -> np.ndarray:
    """The symbols uint8 [N] that `encode` coded with the same classes and frequencies."""
    count = len(classes)
    classes = np.append(classes, np.zeros(-count % LANES, np.uint8)).reshape(-1, LANES)
    symbols = np.empty(classes.shape, np.uint8)
    kinds, width = frequency.shape
    of_slot = np.concatenate([np.repeat(np.arange(width), row) for row in frequency]).astype(np.uint8)  # [K * 2**14]
    kind, slot = np.divmod(np.arange(kinds << _BITS), 1 << _BITS)
    size = frequency[kind, of_slot].astype(np.uint64)
    within = (slot - (frequency.cumsum(1) - frequency)[kind, of_slot]).astype(np.uint64)
    state = np.frombuffer(content, "<u4", LANES).astype(np.uint64)
    words = np.frombuffer(content, "<u2", offset=4 * LANES).astype(np.uint64)
    next_word = 0
    for line, kinds_of_line in zip(symbols, classes, strict=True):
        at = (kinds_of_line.astype(np.uint64) << np.uint64(_BITS)) + (state & np.uint64((1 << _BITS) - 1))
        line[:] = of_slot[at]
        state = size[at] * (state >> np.uint64(_BITS)) + within[at]
        empty = np.flatnonzero(state < _LEAST)
        state[empty] = (state[empty] << np.uint64(16)) | words[next_word : next_word + len(empty)]
        next_word += len(empty)
    return symbols.ravel()[:count]
