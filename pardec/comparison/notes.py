"""What a reader of a table should know beside its figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .metrics import waiting

if TYPE_CHECKING:
    from .run import Run


def broken(row: Mapping[str, Any]) -> bool:
    """Whether a sampler that promises the tokens of sequential decoding gave others, and no tie explains it."""
    return row["exact"] == "greedy" and (row.get("mismatches") or 0) > (row.get("ties") or 0)


def notes(rows: Sequence[Mapping[str, Any]], run: Run, device: str | None) -> list[str]:
    """What failed, what does not keep its promise, and what figures rest on; `device` is what speeds are of."""
    found = [
        f"{row['sampler']}: {row['failed']} rows failed, most often with {row['error']}"
        for row in rows
        if row["failed"]
    ]
    found += [note for row in rows for note in _of_one(row)]
    waits = {row["sampler"]: waiting([one for one in run.rows if one["sampler"] == row["sampler"]]) for row in rows}
    if not all(waits.values()):  # the others are not held to whole batches
        found += [f"{name}: its speed is that of whole batches, since {why}" for name, why in waits.items() if why]
    whence = "its size beside the model's" if run.config.get("cost_ratio") is None else "as asked"
    costs: dict[float, list[str]] = {}
    for row in rows:
        if row["draft_forwards"] and row["cost_ratio"] is not None:
            costs.setdefault(row["cost_ratio"], []).append(row["sampler"])
    found += [
        f"{', '.join(names)}: the simulated speed-up counts a forward of the drafter as {cost:.3g}, {whence}"
        for cost, names in costs.items()
    ]
    for field, what in (("device", "speeds are those of"), ("dtype", "there are rows of")):
        seen = Counter(row[field] for row in run.rows if row["error"] is None)
        if len(seen) > 1:
            shown = device if field == "device" else " and ".join(seen)
            found.append(f"rows were made with several {field}s; {what} {shown}")
    return found


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
        yield f"{row['sampler']}: relaxed, and how far its law is from the model's is not known"
