"""The main result of a comparison in one sentence."""

from __future__ import annotations

from collections.abc import Sequence

from .columns import Row, percent, plain, times


def finding(rows: Sequence[Row]) -> str:
    """One sentence on forwards and accuracy; plain text, names in backquotes."""
    complete = [row for row in rows if not row["failed"] and row["nfe"] is not None]
    failed = [row for row in rows if row["failed"]]
    if not complete:
        error = next((str(row["error"]) for row in failed if row["error"]), None)
        return f"No sampler finished all problems: {error}" if error else "No sampler finished all problems."
    return _compared(complete) + _failures(failed)


def _failures(failed: Sequence[Row]) -> str:
    if not failed:
        return ""
    names = " and ".join(_name(row) for row in failed[:2])
    names += f" and {len(failed) - 2} more" if len(failed) > 2 else ""
    return f" {names} failed on some problems and {'is' if len(failed) == 1 else 'are'} left out of this comparison."


def _compared(complete: list[Row]) -> str:
    base = next((row for row in complete if row["exact"] != "relaxed"), complete[0])
    if len(complete) == 1:
        return f"{_name(base)} takes {_forwards(base)}{_at(base)}."
    faster = sorted((row for row in complete if row["nfe"] < base["nfe"]), key=lambda row: row["nfe"])
    if not faster:
        return f"No other sampler needs fewer than the {_forwards(base)} of {_name(base)}{_at(base)}."
    if base["accuracy"] is None:
        return f"{_beside(faster[0], base)}; nothing was scored."
    scored = [row for row in faster if row["accuracy"] is not None]
    as_accurate = next((row for row in scored if row["accuracy"] >= base["accuracy"]), None)
    if as_accurate is not None:
        return f"{_beside(as_accurate, base)}, with {_accuracies(as_accurate, base)}."
    overlapping = next((row for row in scored if _overlap(row, base)), None)
    if overlapping is not None:
        return f"{_beside(overlapping, base)}, with {_accuracies(overlapping, base)} (the 95% intervals overlap)."
    if not scored:
        return f"{_beside(faster[0], base)}; it was not scored."
    best = max(scored, key=lambda row: row["accuracy"])
    return (
        f"No sampler with fewer forwards keeps the accuracy of {_name(base)}, {percent(base['accuracy'])} in "
        f"{_forwards(base)}: the nearest, {_name(best)}, reaches {percent(best['accuracy'])} in {plain(best['nfe'])}"
        f"{_speed(best, base)}."
    )


def _name(row: Row) -> str:
    return f"`{row['sampler']}`"


def _forwards(row: Row) -> str:
    return f"{plain(row['nfe'])} forwards per problem"


def _beside(row: Row, base: Row) -> str:
    """Forwards and speed together, since fewer forwards are not always faster."""
    return f"{_name(row)} takes {_forwards(row)} where {_name(base)} takes {plain(base['nfe'])}{_speed(row, base)}"


def _speed(row: Row, base: Row) -> str:
    own, other = row.get("tokens_per_second"), base.get("tokens_per_second")
    return f", at {times(own / other)} its tokens per second" if own and other else ""


def _accuracies(row: Row, base: Row) -> str:
    if row["accuracy"] == base["accuracy"]:
        return f"the same accuracy of {percent(row['accuracy'])}"
    return f"an accuracy of {percent(row['accuracy'])} against {percent(base['accuracy'])}"


def _at(row: Row) -> str:
    return "" if row["accuracy"] is None else f" at an accuracy of {percent(row['accuracy'])}"


def _overlap(one: Row, other: Row) -> bool:
    """Whether the intervals of two scored rows overlap."""
    return bool(one["accuracy_low"] <= other["accuracy_high"] and other["accuracy_low"] <= one["accuracy_high"])
