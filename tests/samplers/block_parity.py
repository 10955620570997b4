"""Compares a block stage with its rule of tests/reference/naive_blocks.py on the checkpoints of recorded sets."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

import pardec
from tests.reference import naive_blocks as naive
from tests.samplers.parity import recorded

NEW, SIZE = 21, 6
Make = Callable[[int, int, int], naive.Rule]  # a row's prompt, its length, the block length


def agree(name: str, spec: str, make: Make) -> None:
    """Compares ragged rows at two thresholds: the tokens, and the forward of each commit."""
    model = pardec.Model(recorded(name))
    decoding, vocab = model.language_model.decoding_config, model.language_model.vocab_size

    def predict(tokens: list[int]) -> list[tuple[int, float]]:
        logits = model.logits(torch.tensor([tokens]))[0].double()
        logits[:, decoding.mask_id] = -torch.inf
        best = logits.softmax(-1).max(-1)
        pairs = list(zip(best.indices.tolist(), best.values.tolist(), strict=True))
        return pairs[:1] + pairs[:-1] if decoding.shift else pairs

    drawn = np.random.RandomState(3)
    given = [drawn.randint(3, vocab - 10, length).tolist() for length in (5, 9)]
    for tau in (0.05, 0.15):
        result = model.generate(
            input_ids=given, sampler=f"{spec}+threshold:tau={tau}", max_new_tokens=NEW, block_length=SIZE, stop_ids=[]
        )
        for row, prompt in enumerate(given):
            total = len(prompt) + NEW
            canvas = [*prompt, *[decoding.mask_id] * NEW]
            tokens, when = naive.decode(predict, canvas, decoding.mask_id, make(len(prompt), total, SIZE), tau)
            assert result.sequences[row, :total].tolist() == tokens
            assert result.trace.commit_step[row, :total].tolist() == when
