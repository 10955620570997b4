"""What a process does with units: decode them, time them, score them, and make rows of them."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from pardec.samplers.registry import resolve
from pardec.samplers.rng import row_seed

from ..environment import processor
from ..executors import described
from ..io.jsonl import Row
from ..requests import draft_models
from ..requests.continuous import VectorCall
from ..requests.text import Call
from ..result import Result
from ..tasks import Task
from .entries import Entry
from .memory import Peak
from .units import Problems, Unit

if TYPE_CHECKING:
    from ..api import Model

_Ready = tuple[Unit, Call | VectorCall]

# What a decode says of a row, beside its name; null where the row failed.
FIGURES = (
    "text", "tokens", "finish", "generated", "nfe", "nfe_to_end", "tokens_fed", "score", "lenient", "steps", "scores",
    "drafted", "accepted", "draft_forwards", "cost_ratio", "deviation", "tested", "kept", "parts", "seconds", "batch",
    "peak_memory",
)  # fmt: skip


@dataclass(frozen=True)
class Job:
    """A comparison as a process needs it. Picklable where `model` is a name."""

    model: str | Model
    loading: Mapping[str, Any]  # the arguments of `pardec.load`
    entries: tuple[Entry, ...]
    tasks: Mapping[str, Task]
    problems: Problems
    traces: Path  # folder of the saved results
    batch_size: int
    replays: int  # problems of each task whose results are saved
    first_seed: int  # the seed they are saved for
    warm_up: bool = True  # a batch of each sampler that is not timed

    def worker(self) -> Worker:
        """Loads the model, where it is a name."""
        return Worker(self)


class Worker:
    """Decodes units with one model."""

    def __init__(self, job: Job) -> None:
        from ..api import load

        self.job = job
        self.model = load(job.model, **job.loading) if isinstance(job.model, str) else job.model
        self.entries = {entry.sampler: entry for entry in job.entries}
        self.peak = Peak(self.model.network.device)
        self.device = device_name(self.model)
        self.warm: set[str] = set()
        self.costs: dict[str, float | None] = {}

    def run(self, units: Sequence[Unit]) -> Iterator[list[Row]]:
        """One row a unit of one sampler and task, told as they are finished.

        A unit enters the batch as another leaves it. Where that fails, what is left is decoded in batches of their own,
        and each unit of a batch that fails alone, so that only those at fault are failed rows.
        """
        entry = self.entries[units[0].sampler]
        ready: dict[str, _Ready] = {}
        for unit in units:
            try:
                ready[unit.key] = unit, self._call(entry, unit)
            except Exception as error:
                yield [self._failed(unit, error)]
        whole = max(len(ready), 1)
        for most in sorted({size for size in (whole, self.job.batch_size, 1) if size <= whole}, reverse=True):
            left = list(ready.values())
            for some in (left[at : at + most] for at in range(0, len(left), most)):
                try:
                    for row in self._served(entry, some):
                        del ready[row["key"]]
                        yield [row]
                except Exception as error:
                    if len(some) == 1:
                        unit, _ = ready.pop(some[0][0].key)
                        yield [self._failed(unit, error)]
            if ready and torch.cuda.is_available():
                torch.cuda.empty_cache()

    def _served(self, entry: Entry, some: Sequence[_Ready]) -> Iterator[Row]:
        """The rows of one batch, as they are finished."""
        calls = [call for _, call in some]
        if self.job.warm_up and not entry.reference and entry.sampler not in self.warm:
            with self.model.serve(calls[: self.job.batch_size], batch_size=self.job.batch_size) as serving:
                deque(serving, maxlen=0)  # the first batch of a sampler also pays for what is set up once
            self.warm.add(entry.sampler)
        self.peak.reset()
        with self.model.serve(calls, batch_size=self.job.batch_size) as serving:
            batch, name = None, ""
            for served in serving:
                unit = some[served.index][0]
                if serving.batch is not batch:
                    batch, name = serving.batch, unit.key
                timed = {"id": name, **asdict(serving.batch)}
                if serving.waits is None:
                    timed["rows"] = len(some)  # the others join it yet
                yield self._row(unit, entry, served.result, timed | {"waits": serving.waits}, self.peak.read())

    def _call(self, entry: Entry, unit: Unit) -> Call | VectorCall:
        problem = self.job.problems[unit.task][unit.index]
        given = {"prompt": [problem.prompt]} if problem.label is None else {"label": [problem.label]}
        seeds = [row_seed(unit.seed, unit.index)]
        return self.model.prepare(**given, sampler=entry.asked, seed=seeds, **entry.arguments)

    def _row(self, unit: Unit, entry: Entry, result: Result, timed: Mapping[str, Any], memory: int | None) -> Row:
        problem, text = self.job.problems[unit.task][unit.index], result.text[0] if result.text else None
        task = self.job.tasks[unit.task]
        answer: Any = text if task.answers == "text" else result.images[0] if result.images else None
        try:
            score = None if answer is None else task.score(problem, answer)
            lenient = None if answer is None else task.lenient(problem, answer)
            seen = {} if answer is None else task.seen(problem, answer)
        except Exception as error:  # of a user's own scorer
            return self._failed(unit, error)
        if unit.index < self.job.replays and unit.seed == self.job.first_seed:
            result.save(self.job.traces / unit.key)
        steps, scores = commits(result)
        figures = {
            "text": text,
            "tokens": result.tokens[0],
            "finish": result.finish[0],
            "generated": result.generated[0],
            "nfe": result.nfe[0],
            "nfe_to_end": max(steps, default=-1) + 1,
            "tokens_fed": result.tokens_fed[0],
            "score": score,
            "lenient": lenient,
            **seen,
            "steps": steps,
            "scores": scores,
            **self._drafting(entry, result),
            **_image_figures(result),
            "seconds": result.timing.total_s,
            "batch": dict(timed),
            "peak_memory": memory,
        }
        return {**self._named(unit, entry), "spec": result.spec, "exact": result.exact, **figures, **self._end(None)}

    def _drafting(self, entry: Entry, result: Result) -> Row:
        """What the verify loop tells of a one-row result beside the others; null for masked models and vectors."""
        trace = result.trace
        if not trace.accepted or result.latents is not None:
            return dict.fromkeys(("drafted", "accepted", "draft_forwards", "cost_ratio", "deviation"))
        forced = {"forced": list(trace.forced[0])} if trace.forced else {}
        return forced | {
            "drafted": list(trace.drafted[0]),
            "accepted": list(trace.accepted[0]),
            "draft_forwards": result.draft_forwards[0],
            "cost_ratio": self._cost_ratio(entry),
            "deviation": result.deviation[0] if result.exact == "relaxed" else None,
        }

    def _cost_ratio(self, entry: Entry) -> float | None:
        """What a forward of the sampler's drafter costs, as the drafter has it; None where it has no word on it."""
        if entry.sampler not in self.costs:
            sampler, target = resolve(entry.asked, "ar"), self.model.language_model
            self.costs[entry.sampler] = sampler.draft.cost_ratio(target, draft_models.for_text(sampler, target))
        return self.costs[entry.sampler]

    def _failed(self, unit: Unit, error: Exception) -> Row:
        named = self._named(unit, self.entries[unit.sampler])
        return {**named, **dict.fromkeys(FIGURES), **self._end(described(error))}

    def _named(self, unit: Unit, entry: Entry) -> Row:
        return {
            "key": unit.key,
            "sampler": unit.sampler,
            "spec": entry.spec,
            "exact": entry.exact,
            "seed": unit.seed,
            "task": unit.task,
            "problem": self.job.problems[unit.task][unit.index].id,
            "index": unit.index,
            "reference": unit.reference,
        }

    def _end(self, error: str | None) -> Row:
        dtype = str(self.model.network.dtype).removeprefix("torch.")
        return {"device": self.device, "dtype": dtype, "quantize": self.model.quantized, "error": error}


def _image_figures(result: Result) -> Row:
    """What the continuous loop tells of a one-row result beside the others; null where tokens have ids."""
    if result.latents is None:
        return dict.fromkeys(("tested", "kept", "parts"))
    return {
        "tested": list(result.trace.drafted[0]),
        "kept": list(result.trace.accepted[0]),
        "draft_forwards": result.draft_forwards[0],
        "deviation": result.deviation[0] if result.exact == "relaxed" else None,
        "parts": dict(result.timing.parts),
    }


def commits(result: Result) -> tuple[list[int], list[float | None]]:
    """The forward, from 0, and the score that each of a one-row result's tokens was committed with; -1 if given."""
    here = result.span(0)
    steps, scores = result.trace.forward[0, here], result.trace.commit_score[0, here]
    # Five digits: the others differ with the size of the batch.
    return steps.tolist(), [round(score, 5) if math.isfinite(score) else None for score in scores.tolist()]


def device_name(model: Model) -> str:
    """What speeds were measured on, so that those of different machines are told apart."""
    device = model.network.device
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type != "cpu":
        return device.type
    return f"{processor()}, {model.threads} thread{'s' * (model.threads > 1)}"
