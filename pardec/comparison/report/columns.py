"""The columns of the report's tables: title, meaning and number format of each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Literal

Row = Mapping[str, Any]
NOTHING = "–"


def plain(value: float, digits: int = 3) -> str:
    """A number with `digits` significant digits, and always all digits before the point.

    >>> plain(1.5234), plain(32.0), plain(12345.6), plain(0.00012345)
    ('1.52', '32', '12,346', '0.000123')
    """
    if value == 0:
        return "0"
    whole = len(str(int(abs(value)))) if abs(value) >= 1 else 0
    text = f"{value:,.{max(digits - whole, 0)}f}" if whole else f"{value:.{digits}g}"
    return text.rstrip("0").rstrip(".") if "." in text and "e" not in text else text


def percent(value: float) -> str:
    """A share as a percentage.

    >>> percent(0.975), percent(1.0)
    ('97.5%', '100%')
    """
    return f"{100 * value:.1f}".removesuffix(".0") + "%"


def times(value: float) -> str:
    return f"{plain(value)}×"


def milliseconds(seconds: float) -> str:
    return f"{plain(1000 * seconds)} ms"


def size(count: float) -> str:
    """A number of bytes in a suitable unit.

    >>> size(1_500_000)
    '1.43 MiB'
    """
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{plain(count)} {unit}"
        count /= 1024
    return f"{plain(count)} GiB"


@dataclass(frozen=True, slots=True)
class Column:
    """A figure of the table; the keys with `_low` and `_high` appended are its interval."""

    key: str
    title: str
    meaning: str
    write: Callable[[float], str] = plain
    better: Literal["high", "low"] = "high"
    only: Callable[[Row], bool] | None = None  # the column is omitted if this is false for every row

    def worth_showing(self, rows: Sequence[Row]) -> bool:
        """Whether any row has the figure, and it adds information."""
        rows_with_value = [row for row in rows if row.get(self.key) is not None]
        return any(self.only(row) for row in rows_with_value) if self.only else bool(rows_with_value)

    def cell(self, row: Row) -> str:
        """The figure as a table cell with its interval below."""
        value = row.get(self.key)
        if value is None:
            return f'<td data-value="">{NOTHING}</td>'
        low, high = row.get(f"{self.key}_low"), row.get(f"{self.key}_high")
        interval = "" if low is None or high is None else f"<small>{self.write(low)} to {self.write(high)}</small>"
        return f'<td data-value="{float(value)!r}">{escape(self.write(value))}{interval}</td>'


def _differs(key: str, other: str) -> Callable[[Row], bool]:
    return lambda row: bool(row.get(key) != row.get(other))


COLUMNS = (
    Column("accuracy", "Accuracy", "mean score over the problems, with its 95% interval", percent),
    Column(
        "lenient",
        "Lenient",
        "mean score over the problems, scored leniently",
        percent,
        only=_differs("lenient", "accuracy"),
    ),
    Column("nfe", "NFE", "mean forwards per problem", better="low"),
    Column(
        "nfe_to_end",
        "NFE to\u00a0end",
        "mean forwards until everything up to the first end token was committed",
        better="low",
        only=_differs("nfe_to_end", "nfe"),
    ),
    Column("tokens_per_forward", "Tokens per\u00a0forward", "tokens before the first end token, divided by forwards"),
    Column(
        "tokens_per_second",
        "Tokens/s",
        "tokens before the first end token per second, where rows enter a batch as others leave it; median over the "
        "batches, with quartiles",
    ),
    Column("speed_up", "Speed\u2011up", "tokens per second relative to the first row", times),
    Column(
        "seconds_per_forward",
        "Time per\u00a0forward",
        "median milliseconds of a batch's forward",
        milliseconds,
        better="low",
    ),
    Column("seconds", "Seconds", "mean seconds per image: those of its batch, divided by its images", better="low"),
    Column("backbone_seconds", "In the backbone", "mean seconds per image in the backbone", better="low"),
    Column("head_seconds", "In the head", "mean seconds per image in the head", better="low"),
    Column("draft_backbone_seconds", "In the drafter's backbone", "mean seconds per image", better="low"),
    Column("draft_head_seconds", "In the drafter's head", "mean seconds per image", better="low"),
    Column("transformer_seconds", "In the transformer", "mean seconds per image in the model", better="low"),
    Column("refiner_seconds", "In the refiner", "mean seconds per image in the small model", better="low"),
    Column(
        "weighted_forwards",
        "Weighted forwards",
        "mean forwards of both models; the small one's are weighted by its share of the parameters",
        better="low",
        only=lambda row: bool(row["draft_forwards"]),
    ),
    Column("tokens_fed", "Tokens fed", "mean positions queried by the forwards of a problem", better="low"),
    Column("fed_per_token", "Fed per\u00a0token", "positions queried per token before the end token", better="low"),
    Column(
        "forwards_per_token",
        "Forwards per\u00a0token",
        "forwards divided by the tokens before the first end token",
        better="low",
    ),
    Column(
        "acceptance_length",
        "Acceptance length",
        "tokens gained per round of drafting and verifying, including the next token, without the prompt's round",
    ),
    Column("acceptance_rate", "Accepted", "share of the drafted vectors that were accepted", percent),
    Column("draft_depth", "Draft depth", "mean length of the longest drafted path per round"),
    Column(
        "draft_forwards",
        "Drafter's forwards",
        "mean forwards of the drafting model per problem; NFE counts those of the model itself",
        better="low",
        only=lambda row: bool(row["draft_forwards"]),
    ),
    Column("padding", "Padding", "share of the positions fed that are padding", percent, better="low"),
    Column(
        "simulated_speed_up",
        "Simulated speed\u2011up",
        "tokens per round / (drafter's forwards per round * cost ratio + 1): the speed-up over one forward per token "
        "if the cost of a forward did not depend on the number of tokens fed",
        times,
    ),
    Column(
        "cost_ratio",
        "Cost ratio",
        "cost of a forward of the drafter relative to the model's, as used in the simulated speed-up",
        better="low",
        only=lambda row: bool(row["draft_forwards"]),
    ),
    Column(
        "deviation",
        "Deviation",
        "mean total variation from the model's distribution per problem, as a relaxed acceptance reports it",
        better="low",
    ),
    Column("deviation_per_token", "Deviation per\u00a0token", "deviation divided by the tokens", better="low"),
    Column(
        "floor_share",
        "Share of\u00a0floor",
        "forwards of an oracle, which commits everything that agrees with the final text, divided by those of the "
        "sampler; with the same cache",
        percent,
    ),
    Column("agreement", "Agreement", "share of tokens that equal those of sequential decoding", percent),
    Column("identical", "Identical", "share of problems whose tokens all equal those of sequential decoding", percent),
    Column(
        "mismatches",
        "Other tokens",
        "decodes that differ from the sequential one, for samplers that promise the same tokens",
        better="low",
        only=lambda row: row["exact"] == "greedy" and row["mismatches"] > 0,
    ),
    Column(
        "ties",
        "At ties",
        "such decodes whose first difference is at a tie of the likeliest tokens",
        better="low",
        only=lambda row: row["exact"] == "greedy" and bool(row["mismatches"]),
    ),
    Column(
        "distance",
        "FID",
        "Fr\u00e9chet distance of the images from reference images of the same captions, in the scorer's features",
        better="low",
    ),
    Column("peak_memory", "Peak memory", "peak memory on the device", size, better="low"),
)


# The meaning of each field of a table's rows.
MEANINGS = {column.key: column.meaning for column in COLUMNS} | {
    "sampler": "the sampler as requested",
    "exact": "greedy: the tokens equal those of sequential decoding; distribution: they have the same distribution; "
    "relaxed: neither is promised",
    "failed": "problems that ended in an error",
    "cut": "answers that reached their limit of tokens before an end token",
}


def columns(rows: Sequence[Row]) -> list[Column]:
    """The columns worth showing; after the known ones, other numeric fields of the rows."""
    known = {column.key for column in COLUMNS} | _OTHER_COLUMNS
    others = dict.fromkeys(key for row in rows for key, value in row.items() if key not in known and _number(value))
    extra = [
        Column(key, key.replace("_", " ").capitalize(), "", better="low")
        for key in others
        if not key.endswith(("_low", "_high"))
    ]
    return [column for column in (*COLUMNS, *extra) if column.worth_showing(rows)]


_OTHER_COLUMNS = {"problems", "seeds", "failed", "cut"}


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """At most `most` round numbers between two.

    >>> ticks(0.4, 1.02)
    [0.4, 0.6, 0.8, 1.0]
    """
    raw = (high - low) / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(times * power for times in (1, 2, 5, 10) if times * power >= raw)
    return [
        float(f"{at * step:.12g}") for at in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    ]


def log_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 of every power of ten, 1 alone over more than three powers, round numbers where that gives too few.

    >>> log_ticks(3, 60), log_ticks(3, 4), log_ticks(1, 50000)
    ([5.0, 10.0, 20.0, 50.0], [3.0, 3.2, 3.4, 3.6, 3.8, 4.0], [1.0, 10.0, 100.0, 1000.0, 10000.0])
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    digits = (1,) if math.log10(high / low) > 3 else (1, 2, 5)
    found = [times * 10.0**power for power in powers for times in digits if low <= times * 10.0**power <= high]
    return found if len(found) > 2 else ticks(low, high)
