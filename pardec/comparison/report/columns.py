"""The columns of the report's tables: what each is called, what it means, how its figures are written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Literal

Row = Mapping[str, Any]
NOTHING = "–"


def plain(value: float, digits: int = 3) -> str:
    """A number in `digits` digits, all of them before the point kept.

    >>> plain(1.5234), plain(32.0), plain(12345.6), plain(0.00012345)
    ('1.52', '32', '12,346', '0.000123')
    """
    if value == 0:
        return "0"
    whole = len(str(int(abs(value)))) if abs(value) >= 1 else 0
    text = f"{value:,.{max(digits - whole, 0)}f}" if whole else f"{value:.{digits}g}"
    return text.rstrip("0").rstrip(".") if "." in text and "e" not in text else text


def percent(value: float) -> str:
    """
    >>> percent(0.975), percent(1.0)
    ('97.5%', '100%')
    """
    return f"{100 * value:.1f}".removesuffix(".0") + "%"


def times(value: float) -> str:
    return f"{plain(value)}×"


def milliseconds(seconds: float) -> str:
    return f"{plain(1000 * seconds)} ms"


def size(count: float) -> str:
    """Bytes in the unit that suits them.

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
    """A figure of the table; `_low` and `_high` beside it are its interval."""

    key: str
    title: str
    meaning: str
    write: Callable[[float], str] = plain
    better: Literal["high", "low"] = "high"
    only: Callable[[Row], bool] | None = None  # the column is left out where no row says yes

    def worth_showing(self, rows: Sequence[Row]) -> bool:
        """Whether any row has the figure, and it tells something the others do not."""
        have = [row for row in rows if row.get(self.key) is not None]
        return any(self.only(row) for row in have) if self.only else bool(have)

    def cell(self, row: Row) -> str:
        """The figure as a table cell, its interval below."""
        value = row.get(self.key)
        if value is None:
            return f'<td data-value="">{NOTHING}</td>'
        low, high = row.get(f"{self.key}_low"), row.get(f"{self.key}_high")
        between = "" if low is None or high is None else f"<small>{self.write(low)} to {self.write(high)}</small>"
        return f'<td data-value="{float(value)!r}">{escape(self.write(value))}{between}</td>'


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
    Column("nfe", "NFE", "forwards that a problem took part in, mean", better="low"),
    Column(
        "nfe_to_end",
        "NFE to\u00a0end",
        "forwards until everything through the first end token was committed, mean",
        better="low",
        only=_differs("nfe_to_end", "nfe"),
    ),
    Column("tokens_per_forward", "Tokens per\u00a0forward", "tokens before the first end token, over forwards"),
    Column(
        "tokens_per_second",
        "Tokens/s",
        "tokens before the first end token, over seconds, with rows entering a batch as others leave it; median of the "
        "batches, with quartiles",
    ),
    Column("speed_up", "Speed\u2011up", "tokens a second over those of the first row", times),
    Column("seconds_per_forward", "Time per\u00a0forward", "of a batch, in milliseconds", milliseconds, better="low"),
    Column("seconds", "Seconds", "of a picture of vectors, its share of the batch's, mean", better="low"),
    Column("backbone_seconds", "In the backbone", "seconds of it in the backbone, mean", better="low"),
    Column("head_seconds", "In the head", "seconds of it in the head, mean", better="low"),
    Column("draft_backbone_seconds", "In the drafter's backbone", "seconds of it, mean", better="low"),
    Column("draft_head_seconds", "In the drafter's head", "seconds of it, mean", better="low"),
    Column("tokens_fed", "Tokens fed", "positions that the forwards of a problem queried, mean", better="low"),
    Column("fed_per_token", "Fed per\u00a0token", "positions queried for each token before the end", better="low"),
    Column("forwards_per_token", "Forwards per\u00a0token", "over the tokens before the first end token", better="low"),
    Column(
        "acceptance_length",
        "Acceptance length",
        "tokens gained a round of drafting and verifying, the next token included, the prompt's round left out",
    ),
    Column("acceptance_rate", "Accepted", "share of the drafted vectors that were accepted", percent),
    Column("draft_depth", "Draft depth", "tokens that a round drafts one behind the other, mean"),
    Column(
        "draft_forwards",
        "Drafter's forwards",
        "forwards of the drafting model that a problem took part in, mean; NFE counts those of the model itself",
        better="low",
        only=lambda row: bool(row["draft_forwards"]),
    ),
    Column("padding", "Padding", "share of the positions fed that belong to no row", percent, better="low"),
    Column(
        "simulated_speed_up",
        "Simulated speed\u2011up",
        "tokens a round / (drafter's forwards a round * cost ratio + 1): what the speed-up over one forward a token "
        "would be if a forward cost the same however many tokens it is fed",
        times,
    ),
    Column(
        "cost_ratio",
        "Cost ratio",
        "what a forward of the drafter counts in the simulated speed-up",
        better="low",
        only=lambda row: bool(row["draft_forwards"]),
    ),
    Column(
        "deviation",
        "Deviation",
        "what a relaxed acceptance says it adds up to in a problem, in total variation, mean",
        better="low",
    ),
    Column("deviation_per_token", "Deviation per\u00a0token", "the same over the tokens", better="low"),
    Column(
        "floor_share",
        "Share of\u00a0floor",
        "forwards of an oracle, which commits whatever agrees with the final text, over those of the sampler; with the "
        "same cache",
        percent,
    ),
    Column("agreement", "Agreement", "share of tokens that are those of sequential decoding", percent),
    Column("identical", "Identical", "share of problems whose tokens are all those of sequential decoding", percent),
    Column(
        "mismatches",
        "Other tokens",
        "decodes with other tokens than the sequential one, of samplers that promise the same",
        better="low",
        only=lambda row: row["exact"] == "greedy" and row["mismatches"] > 0,
    ),
    Column(
        "ties",
        "At ties",
        "those of them that part from it where the likeliest tokens are tied",
        better="low",
        only=lambda row: row["exact"] == "greedy" and bool(row["mismatches"]),
    ),
    Column(
        "distance",
        "FID",
        "Fr\u00e9chet distance of the pictures from true ones of the same, in features of the scorer's own",
        better="low",
    ),
    Column("peak_memory", "Peak memory", "the most that was held on the device", size, better="low"),
)


# What a figure means, by its name in the rows of a table: for every place that shows one.
MEANINGS = {column.key: column.meaning for column in COLUMNS} | {
    "sampler": "as it was asked for",
    "exact": "greedy: the tokens are those of sequential decoding; distribution: they are drawn as its are; relaxed: "
    "neither is promised",
    "failed": "problems that ended in an error",
}


def columns(rows: Sequence[Row]) -> list[Column]:
    """The columns worth showing; behind the known ones, what else the rows have in numbers."""
    known = {column.key for column in COLUMNS} | _SHOWN_OTHERWISE
    others = dict.fromkeys(key for row in rows for key, value in row.items() if key not in known and _number(value))
    more = [
        Column(key, key.replace("_", " ").capitalize(), "", better="low")
        for key in others
        if not key.endswith(("_low", "_high"))
    ]
    return [column for column in (*COLUMNS, *more) if column.worth_showing(rows)]


_SHOWN_OTHERWISE = {"problems", "seeds", "failed"}


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
