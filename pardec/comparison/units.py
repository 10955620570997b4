"""Units of work: one prompt decoded by one sampler with one seed; and the batches they are decoded in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Any

from ..io.jsonl import key_of
from ..tasks import Problem
from .entries import Entry

Problems = Mapping[str, Sequence[Problem]]  # by task


@dataclass(frozen=True, slots=True)
class Unit:
    """One row to be. `index` is the problem's place in its task, and with `seed` decides the row's own seed."""

    key: str
    sampler: str
    seed: int
    task: str
    index: int
    reference: bool


def batches(
    entries: Sequence[Entry], problems: Problems, seeds: Sequence[int], size: int, identity: Mapping[str, Any]
) -> list[list[Unit]]:
    """All units of a run in the batches that they are decoded in.

    Problems of like length share a batch, so that little is padded. The samplers take turns, so that a machine that
    grows warm or busy slows all of them. References decode with the first seed only: they do not sample.

    Args:
        identity: what beside sampler, prompt and seed decides a row: model, dtype, version.
    """
    queues = []
    for entry in entries:
        for seed in seeds[:1] if entry.reference else seeds:
            parts = []
            for task, some in problems.items():
                order = sorted(range(len(some)), key=lambda index: (len(str(some[index].prompt)), index))
                units = [_unit(entry, seed, task, index, some[index], identity) for index in order]
                parts += [units[at : at + size] for at in range(0, len(units), size)]
            queues.append(parts)
    return [batch for batch in chain.from_iterable(zip_longest(*queues)) if batch is not None]


def streams(batches: Sequence[Sequence[Unit]], most: int) -> list[list[Unit]]:
    """Up to so many batches of the same sampler, seed and task as one stream, whose rows follow each other in a batch.

    The streams are in the order of their first batches, so that the samplers take turns still.
    """
    found: list[list[Unit]] = []
    begun: dict[tuple[str, int, str], tuple[list[Unit], int]] = {}
    for batch in batches:
        of = (batch[0].sampler, batch[0].seed, batch[0].task)
        stream, count = begun.get(of, ([], most))
        if count == most:
            stream, count = [], 0
            found.append(stream)
        stream += batch
        begun[of] = stream, count + 1
    return found


def left(planned: Sequence[Sequence[Unit]], done: Mapping[str, Any]) -> list[list[Unit]]:
    """The batches without the units that are done."""
    return [some for batch in planned if (some := [unit for unit in batch if unit.key not in done])]


def _unit(entry: Entry, seed: int, task: str, index: int, problem: Problem, identity: Mapping[str, Any]) -> Unit:
    key = key_of(identity, entry.spec, entry.arguments, task, index, problem.prompt, seed)
    return Unit(key, entry.sampler, seed, task, index, entry.reference)
