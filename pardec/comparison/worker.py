"""Decodes the units of a comparison in one process: times, scores, and turns each into a row."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from pardec.samplers.rng import row_seed

from ..environment import processor
from ..executors.base import describe_error
from ..io.jsonl import Row
from ..memory import Peak
from ..requests import chat_template
from ..requests.answer_warnings import is_cut
from ..requests.call import Call
from ..result import Result
from ..tasks import Problem, Task
from ..tasks.functions import ScoreError
from .entries import Entry
from .units import Problems, Unit

if TYPE_CHECKING:
    from ..api import Model

_Ready = tuple[Unit, Call]

# The fields of a row that come from decoding; null where the row failed.
FIGURES = (
    "text", "tokens", "finish", "generated", "cut", "chat", "nfe", "nfe_to_end", "tokens_fed", "score", "lenient",
    "steps", "scores", "drafted", "accepted", "draft_forwards", "cost_ratio", "deviation", "tested", "kept", "parts",
    "seconds", "batch", "peak_memory",
)  # fmt: skip


@dataclass(frozen=True)
class Job:
    """The settings with which a process runs a comparison. Picklable if `model` is a name."""

    model: str | Model
    loading: Mapping[str, Any]  # the arguments of `pardec.load`
    entries: tuple[Entry, ...]
    tasks: Mapping[str, Task]
    problems: Problems
    traces: Path  # folder for saved results
    batch_size: int
    replays: int  # problems of each task whose results are saved
    first_seed: int  # only results of this seed are saved
    chat: bool | None = None  # whether text prompts go into the chat template; None is the default of `generate`
    warm_up: bool = True  # decode one untimed batch of each sampler first

    def worker(self) -> Worker:
        """Loads the model if it is a name."""
        return Worker(self)


class Worker:
    """Decodes units with one model."""

    def __init__(self, job: Job) -> None:
        from ..api import load

        self.job = job
        self.model = load(job.model, **job.loading) if isinstance(job.model, str) else job.model
        self.chat = chat_template.applies(self.model, job.chat)
        self.entries = {entry.sampler: entry for entry in job.entries}
        self.peak = Peak(self.model.network.device)
        self.device = device_name(self.model)
        self.warm: set[str] = set()
        self.costs: dict[str, float | None] = {}

    def run(self, units: Sequence[Unit]) -> Iterator[list[Row]]:
        """Yields one row per unit of one sampler and task, as the units finish.

        Units enter a batch as others leave it. If that raises, the unfinished units are decoded in separate batches,
        and the units of a batch that raises one by one, so that only the units at fault become failed rows.
        """
        entry = self.entries[units[0].sampler]
        pending: dict[str, _Ready] = {}
        for unit in units:
            try:
                pending[unit.key] = unit, self._call(entry, unit)
            except Exception as error:
                yield [self._error_row(unit, error)]
        total = max(len(pending), 1)
        for limit in sorted({size for size in (total, self.job.batch_size, 1) if size <= total}, reverse=True):
            remaining = list(pending.values())
            for group in (remaining[at : at + limit] for at in range(0, len(remaining), limit)):
                try:
                    for row in self._decode_batch(entry, group):
                        del pending[row["key"]]
                        yield [row]
                except Exception as error:
                    if len(group) == 1:
                        unit, _ = pending.pop(group[0][0].key)
                        yield [self._error_row(unit, error)]
            if pending and torch.cuda.is_available():
                torch.cuda.empty_cache()

    def _decode_batch(self, entry: Entry, group: Sequence[_Ready]) -> Iterator[Row]:
        """The rows of one batch, as they finish."""
        calls = [call for _, call in group]
        if self.job.warm_up and not entry.reference and entry.sampler not in self.warm:
            with self.model.serve(calls[: self.job.batch_size], batch_size=self.job.batch_size) as serving:
                deque(serving, maxlen=0)  # the first batch of a sampler includes one-time setup
            self.warm.add(entry.sampler)
        self.peak.reset()
        with self.model.serve(calls, batch_size=self.job.batch_size) as serving:
            batch, batch_id = None, ""
            for item in serving:
                unit = group[item.index][0]
                if serving.batch is not batch:
                    batch, batch_id = serving.batch, unit.key
                timing = {"id": batch_id, **asdict(serving.batch)}
                if serving.waits is None:
                    timing["rows"] = len(group)  # the other units join this batch later
                yield self._row(unit, entry, group[item.index][1], item.result, timing | {"waits": serving.waits})

    def _call(self, entry: Entry, unit: Unit) -> Call:
        problem, task = self.job.problems[unit.task][unit.index], self.job.tasks[unit.task]
        text = chat_template.as_message(problem.prompt) if self.chat else problem.prompt
        prompt = {"prompt": [text]} if problem.label is None else {"label": [problem.label]}
        seeds = [row_seed(unit.seed, unit.index)]
        return self.model.prepare(**prompt, sampler=entry.asked, seed=seeds, **entry.arguments_for(task, problem))

    def _row(self, unit: Unit, entry: Entry, call: Call, result: Result, timing: Mapping[str, Any]) -> Row:
        memory = self.peak.read()
        problem, text = self.job.problems[unit.task][unit.index], result.text[0] if result.text else None
        task = self.job.tasks[unit.task]
        answer: Any = text if task.answers == "text" else result.images[0] if result.images else None
        try:
            score = None if answer is None else task.score(problem, answer)
            lenient = None if answer is None else task.lenient(problem, answer)
            scorer_fields = {} if answer is None else task.seen(problem, answer)
        except ScoreError as error:  # a user's own scorer failed
            where = f" ({error.hint})" if error.hint else ""
            return self._error_row(unit, ScoreError(f"{error}{where}"))
        if unit.index < self.job.replays and unit.seed == self.job.first_seed:
            result.save(self.job.traces / unit.key)
        steps, scores = commits(result)
        ending = {"tokens": result.tokens[0], "finish": result.finish[0], "generated": result.generated[0]}
        figures = {
            "text": text,
            **ending,
            "cut": is_cut(ending, call.settings),
            "chat": self._template(problem),
            "nfe": result.nfe[0],
            "nfe_to_end": max(steps, default=-1) + 1 if result.sides is None else result.nfe[0],
            "tokens_fed": result.tokens_fed[0],
            "score": score,
            "lenient": lenient,
            **scorer_fields,
            "steps": steps,
            "scores": scores,
            **self._drafting(entry, result),
            **_image_figures(result),
            "seconds": result.timing.total_s,
            "batch": dict(timing),
            "peak_memory": memory,
        }
        return {**self._identity(unit, entry), "spec": result.spec, "exact": result.exact, **figures, **self._origin()}

    def _template(self, problem: Problem) -> bool | None:
        """Whether a text prompt is in the chat template; None if there is no choice."""
        plain = problem.label is None and isinstance(problem.prompt, str)
        return self.chat if plain and chat_template.worth_saying(self.model, self.job.chat) else None

    def _drafting(self, entry: Entry, result: Result) -> Row:
        """The drafting figures of a one-row result of the verify loop, or the refiner's for token maps; else null."""
        trace = result.trace
        if result.sides is not None:
            nothing = dict.fromkeys(("drafted", "accepted", "deviation"))
            return nothing | {"draft_forwards": result.draft_forwards[0], "cost_ratio": self._cost_ratio(entry)}
        if not trace.accepted or result.latents is not None:
            return dict.fromkeys(("drafted", "accepted", "draft_forwards", "cost_ratio", "deviation"))
        forced_tokens = {"forced": list(trace.forced[0])} if trace.forced else {}
        return forced_tokens | {
            "drafted": list(trace.drafted[0]),
            "accepted": list(trace.accepted[0]),
            "draft_forwards": result.draft_forwards[0],
            "cost_ratio": self._cost_ratio(entry),
            "deviation": result.deviation[0] if result.exact == "relaxed" else None,
        }

    def _cost_ratio(self, entry: Entry) -> float | None:
        """The cost of a forward of the sampler's drafter, as the drafter states it; None if it does not."""
        if entry.sampler not in self.costs:
            self.costs[entry.sampler] = self.model.driver.cost_ratio(entry.asked)
        return self.costs[entry.sampler]

    def _error_row(self, unit: Unit, error: Exception) -> Row:
        identity = self._identity(unit, self.entries[unit.sampler])
        return {**identity, **dict.fromkeys(FIGURES), **self._origin(describe_error(error))}

    def _identity(self, unit: Unit, entry: Entry) -> Row:
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

    def _origin(self, error: str | None = None) -> Row:
        dtype = str(self.model.network.dtype).removeprefix("torch.")
        kept = {"quantize": self.model.quantized, **self.model.weight_settings}
        return {"device": self.device, "dtype": dtype, **kept, "error": error}


def _image_figures(result: Result) -> Row:
    """What the continuous loop alone counts, of a one-row result; for ids all null but the seconds of the parts."""
    if result.latents is None:
        parts = dict(result.timing.parts) or None
        return {**dict.fromkeys(("tested", "kept")), "parts": parts}
    return {
        "tested": list(result.trace.drafted[0]),
        "kept": list(result.trace.accepted[0]),
        "draft_forwards": result.draft_forwards[0],
        "deviation": result.deviation[0] if result.exact == "relaxed" else None,
        "parts": dict(result.timing.parts),
    }


def commits(result: Result) -> tuple[list[int], list[float | None]]:
    """For each token of a one-row result, the forward (from 0; -1 for prompt tokens) and score of its commit."""
    span = result.span(0)
    steps, scores = result.trace.forward[0, span], result.trace.commit_score[0, span]
    # Five digits: further digits vary with the batch size.
    return steps.tolist(), [round(score, 5) if math.isfinite(score) else None for score in scores.tolist()]


def device_name(model: Model) -> str:
    """Names the device that speeds were measured on."""
    device = model.network.device
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type != "cpu":
        return device.type
    return f"{processor()}, {model.threads} thread{'s' * (model.threads > 1)}"
