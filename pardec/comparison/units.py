"""Units of work (one prompt decoded by one sampler with one seed) and the batches that they are decoded in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Any

from ..io.jsonl import key_of
from ..tasks import Problem, Task
from .entries import Entry

Problems = Mapping[str, Sequence[Problem]]  # by task


@dataclass(frozen=True, slots=True)
class Unit:
    """One row to decode. `index` is the problem's index in its task; with `seed` it determines the row's own seed."""

    key: str
    sampler: str
    seed: int
    task: str
    index: int
    reference: bool


def batches(
    entries: Sequence[Entry],
    tasks: Mapping[str, Task],
    problems: Problems,
    seeds: Sequence[int],
    size: int,
    identity: Mapping[str, Any],
) -> list[list[Unit]]:
    """All units of a run, in batches.

    Problems of similar length share a batch to reduce padding. Batches of the samplers alternate, so that a machine
    that heats up or gets busy slows all of them. References use the first seed only: they do not sample.

    Args:
        identity: what determines a row in addition to sampler, prompt and seed: model, dtype, version.
    """
    queues = []
    for entry in entries:
        for seed in seeds[:1] if entry.reference else seeds:
            queue = []
            for task, own in problems.items():
                order = sorted(range(len(own)), key=lambda index: (len(str(own[index].prompt)), index))
                units = [_unit(entry, seed, tasks[task], task, index, own[index], identity) for index in order]
                queue += [units[at : at + size] for at in range(0, len(units), size)]
            queues.append(queue)
    return [batch for batch in chain.from_iterable(zip_longest(*queues)) if batch is not None]


def streams(batches: Sequence[Sequence[Unit]], limit: int) -> list[list[Unit]]:
    """Joins up to `limit` batches of the same sampler, seed and task into a stream, decoded by continuous batching.

    The streams are in the order of their first batches, so that the samplers still alternate.
    """
    result: list[list[Unit]] = []
    open_streams: dict[tuple[str, int, str], tuple[list[Unit], int]] = {}
    for batch in batches:
        group = (batch[0].sampler, batch[0].seed, batch[0].task)
        stream, count = open_streams.get(group, ([], limit))
        if count == limit:
            stream, count = [], 0
            result.append(stream)
        stream += batch
        open_streams[group] = stream, count + 1
    return result


def remaining(planned: Sequence[Sequence[Unit]], finished: Mapping[str, Any]) -> list[list[Unit]]:
    """The batches without the units that are finished."""
    return [unfinished for batch in planned if (unfinished := [unit for unit in batch if unit.key not in finished])]


def _unit(
    entry: Entry, seed: int, task: Task, name: str, index: int, problem: Problem, identity: Mapping[str, Any]
) -> Unit:
    key = key_of(identity, entry.spec, entry.arguments_for(task, problem), name, index, problem.prompt, seed)
    return Unit(key, entry.sampler, seed, name, index, entry.reference)
