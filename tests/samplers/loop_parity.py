"""Compares a spec with a rule of tests/reference/naive_masked.py, row by row, with the same random numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from pardec.samplers.events import Finished
from pardec.samplers.rng import Keyed
from tests.reference import naive_masked as naive
from tests.samplers.toys import BLOCK, MASK, prompts, request, run, toy

LENGTHS, NEW = (5, 1, 8), (9, 6, 3)  # ragged prompts, and blocks that do not divide what is generated


def compare(
    model: Any, spec: str, select: Any, given: list[list[int]], new: tuple[int, ...], **options: Any
) -> Finished:
    """Runs both on every row; the tokens, the forward of each commit and the number of forwards must be equal."""
    canvases = [row + [MASK] * count for row, count in zip(given, new, strict=True)]
    return compare_canvases(model, spec, select, canvases, [len(row) for row in given], **options)


def orders_as_naive(name: str) -> Callable[..., None]:
    """Makes a test: the proposer of this name orders tokens like the naive decoder, by raw and by filtered scores."""

    @pytest.mark.parametrize("family", ["llada", "dream"])
    @pytest.mark.parametrize("of", ["raw", "filtered"])
    @pytest.mark.covers(1)
    def test(family: str, of: str) -> None:
        model, given = toy(family, seed=3, sharp=1.2), prompts(LENGTHS)
        distribution = {"temperature": 0.7, "top_k": 6} if of == "filtered" else {}
        for select, rule in {"sequential": naive.sequential, "fixed:steps=5": naive.fixed(5)}.items():
            compare(model, f"{name}:of={of}+{select}", rule, given, NEW, **distribution)

    return test


def compare_canvases(
    model: Any, spec: str, select: Any, canvases: list[list[int]], starts: list[int], **options: Any
) -> Finished:
    """`compare` for canvases with given tokens between their masks."""
    absolute = options.setdefault("absolute", model.decoding_config.attention == "block-causal")
    stop_ids = options.get("stop_ids", ())
    seeds = tuple(range(100, 100 + len(canvases)))
    got = run(model, spec, request(canvases, starts, **options))
    first = spec.split("+")[0].split(":")[0].removesuffix("_threshold")
    proposer = first if first in ("margin", "entropy", "random") else "confidence"
    distribution = {key: options[key] for key in ("temperature", "top_k", "top_p", "cfg") if key in options}
    for row, canvas in enumerate(canvases):

        def uniform(step: int, position: int, purpose: str, width: int, seed: int = seeds[row]) -> Any:
            place = torch.tensor([[position]])
            return Keyed((seed,)).uniform(np.array([0]), np.array([step]), place, purpose, width)[0, 0].numpy()

        tokens, when, nfe = naive.decode(
            model,
            canvas,
            starts[row],
            select,
            uniform,
            propose=proposer,
            of="filtered" if "of=filtered" in spec else "raw",
            block_length=options.get("block_length", BLOCK),
            absolute=absolute,
            eos=stop_ids if "+eos" in spec else None,
            **distribution,
        )
        length = len(canvas)
        assert got.trace.commit_step[row, :length].tolist() == when, (spec, row)
        assert got.tokens[row, :length].tolist() == tokens, (spec, row)
        assert got.nfe[row] == nfe
    return got
