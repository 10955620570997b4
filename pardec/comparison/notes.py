"""The notes below a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..requests import answer_warnings, chat_template
from .metrics import queue_reason

if TYPE_CHECKING:
    from .run import Run


_RULES = {
    "exact": ", which wants the answer's text and nothing else",
    "number": ", which compares the last number of the text",
}


def broken(row: Mapping[str, Any]) -> bool:
    """Whether a sampler that promises the tokens of sequential decoding gave others, not explained by ties."""
    return row["exact"] == "greedy" and (row.get("mismatches") or 0) > (row.get("ties") or 0)


def notes(rows: Sequence[Mapping[str, Any]], run: Run, device: str | None) -> list[str]:
    """Failures, broken exactness promises, and assumptions of figures; speeds are those on `device`."""
    messages = [
        f"{row['sampler']}: {row['failed']} rows failed, most often with {row['error']}"
        for row in rows
        if row["failed"]
    ]
    messages += _template(run)
    messages += _scored(run)
    messages += [note for row in rows for note in _cut(row, run)]
    messages += [note for row in rows for note in _of_one(row)]
    reasons = {
        row["sampler"]: queue_reason([unit for unit in run.rows if unit["sampler"] == row["sampler"]]) for row in rows
    }
    if not all(reasons.values()):  # some samplers did not have to wait for whole batches
        messages += [
            f"{name}: its speed was measured on whole batches, since {why}" for name, why in reasons.items() if why
        ]
    source = "from the sizes of drafter and model" if run.config.get("cost_ratio") is None else "as requested"
    costs: dict[float, list[str]] = {}
    for row in rows:
        if row["draft_forwards"] and row["cost_ratio"] is not None:
            costs.setdefault(row["cost_ratio"], []).append(row["sampler"])
    messages += [
        f"{', '.join(names)}: the simulated speed-up counts a forward of the drafter as {cost:.3g}, {source}"
        for cost, names in costs.items()
    ]
    for field, what in (("device", "speeds are those of"), ("dtype", "there are rows of")):
        counts = Counter(row[field] for row in run.rows if row["error"] is None)
        if len(counts) > 1:
            value = device if field == "device" else " and ".join(counts)
            messages.append(f"rows were made with several {field}s; {what} {value}")
    return messages


def _template(run: Run) -> Iterator[str]:
    """Whether the prompts are in the chat template, where the model has one."""
    texts = {row["chat"] for row in run.rows if row.get("chat") is not None}
    for applied in sorted(texts):
        yield chat_template.sentence(str(run.config["model"]), applied=applied)


def _scored(run: Run) -> Iterator[str]:
    """The scorer of the answers to prompts, and how many answers have no score."""
    for task in run.config["tasks"]:
        if task.get("scorer") is None:
            continue
        rows = [row for row in run.rows if row["task"] == task["name"] and row["error"] is None]
        missing = len({row["problem"] for row in rows if row["score"] is None})
        count = len({row["problem"] for row in rows})
        name = task["scorer"]
        text = f"{task['name']}: answers are scored by {name!r}{_RULES.get(name, '')}"
        if not missing:
            yield text
            continue
        why = "the prompts have no answer" if name in _RULES else "the scorer returned None"
        some = "no problem has a score" if missing == count else f"{missing} of {count} problems have no score"
        yield f"{text}; {some}, since {why}"


def _cut(row: Mapping[str, Any], run: Run) -> Iterator[str]:
    """How many answers of a sampler reached their limit of tokens."""
    units = [unit for unit in run.rows if unit["sampler"] == row["sampler"] and unit["error"] is None]
    cut = [len(unit["tokens"]) for unit in units if unit.get("cut")]
    if cut:
        lengths = set(cut)
        text = answer_warnings.cut_sentence(len(cut), len(units), lengths.pop() if len(lengths) == 1 else None)
        yield f"{row['sampler']}: {text}, before an end token; a larger max_new_tokens (-n) gives more"


def _of_one(row: Mapping[str, Any]) -> Iterator[str]:
    if row["exact"] == "greedy" and row["mismatches"]:
        count = f"{row['mismatches']} of {row['problems'] * row['seeds'] - row['failed']} decodes"
        text = f"{row['sampler']}: promises the tokens of sequential decoding and gave others in {count}"
        if row["ties"] is None:
            yield f"{text}; whether the likeliest tokens were tied there is not recorded"
        else:
            yield f"{text}, {row['ties']} of them at a tie of the likeliest tokens"
    if row["draft_forwards"] and row["cost_ratio"] is None and row["acceptance_length"] is not None:
        yield f"{row['sampler']}: no simulated speed-up, since the cost of the drafter's forwards is not known"
    drafted = row["acceptance_length"] is not None or row["acceptance_rate"] is not None
    if drafted and row["exact"] == "relaxed" and row["deviation"] is None:
        yield f"{row['sampler']}: relaxed, and how far its distribution is from the model's is not known"
