"""Compares a spec with a rule of tests/reference/naive_selects.py, row by row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Any
from zlib import crc32

from pardec.models.load import load
from pardec.models.model import LanguageModel
from pardec.samplers.events import Finished
from tests.reference import naive_selects as naive
from tests.samplers.toys import BLOCK, FAMILIES, prompts, request, run, toy

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
LENGTHS, NEW = (5, 1, 8), (9, 14, 3)  # ragged prompts, and blocks that do not divide what is generated


def agree(
    spec: str,
    make: Callable[[], Any],
    *,
    family: str = "llada",
    sharp: float = 1.2,
    seeds: Sequence[int] = (),
    **options: Any,
) -> list[Finished]:
    """Checks that both decode the same canvases to equal tokens, commit steps and forwards.

    Each spec and family has one of three random models, unless one is given.
    """
    (name, *_) = spec.split('"')  # a file has another path in each run
    return [
        compare(toy(family, seed=seed, sharp=sharp), spec, make, prompts(LENGTHS, seed=seed), NEW, **options)
        for seed in seeds or [crc32(f"{family} {name}".encode()) % 3]
    ]


@cache
def recorded(name: str) -> LanguageModel:
    """The checkpoint of a recorded set, in float32."""
    return load(GOLDEN / name / "checkpoint", device="cpu", dtype="float32")


def agree_recorded(name: str, spec: str, make: Callable[[], Any], **options: Any) -> Finished:
    """Checks that both decode the same ragged canvases alike with the checkpoint of a recorded set."""
    return compare(
        recorded(name), spec, make, prompts((5, 2, 9), vocab=100), (20, 16, 9), **{"block_length": 8, **options}
    )


def block_lengths(family: str) -> Iterator[int]:
    """Each row's own block length: at most what it generates, except on a grid from position 0."""
    return cycle([4] * len(NEW) if "sdar" in family else [min(8, new) for new in NEW])


def compare(
    model: LanguageModel,
    spec: str,
    make: Callable[[], Any],
    given: Sequence[list[int]],
    new: Sequence[int],
    **options: Any,
) -> Finished:
    options.setdefault("absolute", model.decoding_config.attention == "block-causal")
    options.setdefault("block_length", BLOCK)
    mask = model.decoding_config.mask_id
    assert mask is not None
    canvases = [row + [mask] * count for row, count in zip(given, new, strict=True)]
    got = run(model, spec, request(canvases, [len(row) for row in given], **options))
    for row, canvas in enumerate(canvases):
        tokens, when, nfe = naive.decode(model, canvas, len(given[row]), make(), **options)
        assert got.trace.commit_step[row, : len(canvas)].tolist() == when, (spec, row)
        assert got.tokens[row, : len(canvas)].tolist() == tokens, (spec, row)
        assert got.nfe[row] == nfe
    return got


__all__ = ["FAMILIES", "agree", "agree_recorded", "block_lengths", "compare", "recorded"]
