"""Checks the joint distribution of all images of four cells with three codes against transformers' logits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np
import torch

import pardec
from tests.samplers.ar_toys import floor, g_test, spread, variation

BATCH = 600


def check_joint_law(
    model: pardec.Model,
    logits: Callable[[torch.Tensor], torch.Tensor],
    prompts: Sequence[Sequence[int]],
    sets: list[list[int]],
    codes: list[int],
    samplers: Sequence[str],
    count: int,
    *,
    cfg: float = 2.0,
    top_k: int = 2,
    **asked: Any,
) -> None:
    """`prompts` are the conditional and the unconditional one, `sets` the ids allowed at each position of an image."""
    cells = [at for at, options in enumerate(sets) if len(options) > 1]
    images = np.array(list(product(range(3), repeat=4)))
    image = torch.tensor([[options[0] for options in sets]]).repeat(len(images), 1)
    image[:, cells] = torch.tensor(codes)[torch.from_numpy(images)]
    halves = []
    for prompt in prompts:
        ids = torch.cat((torch.tensor([prompt]).repeat(len(images), 1), image), 1)
        halves.append(logits(ids)[:, len(prompt) - 1 : -1])
    guided = halves[1] + cfg * (halves[0] - halves[1])
    law = np.ones(len(images))
    for at, cell in enumerate(cells):
        scores = guided[:, cell, codes].double()
        scores = scores.masked_fill(scores < scores.topk(top_k).values[:, -1:], -torch.inf)
        law *= scores.softmax(-1).numpy()[np.arange(len(images)), images[:, at]]
    assert abs(law.sum() - 1) < 1e-6
    asked |= {"cfg": cfg, "top_k": top_k, "temperature": 1.0, "allowed": dict.fromkeys(cells, codes)}
    for sampler in samplers:
        seen = np.zeros(len(images), dtype=np.int64)
        for start in range(0, count, BATCH):
            seeds = list(range(start, start + BATCH))
            result = model.generate(["it"] * BATCH, sampler=sampler, seed=seeds, **asked)
            found = np.array([[codes.index(row[cell]) for cell in cells] for row in result.tokens])
            seen += np.bincount((found * 3 ** np.arange(4)[::-1]).sum(1), minlength=len(images))
        assert g_test(seen, law) < 4, sampler
        assert variation(seen, law) < floor(law, count) + 4 * spread(law, count), sampler
