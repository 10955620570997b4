"""The one definition of every figure of a comparison: from the rows of one sampler to a number.

None stands where a figure does not apply. A failed row counts as failed, and as a wrong answer where the problem has
one; it is in no other figure.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from ..images.distance import apart
from ..io.jsonl import Row

Rows = Sequence[Row]
Place = tuple[str, int]  # a problem: task and index

Z = 1.959963984540054  # of the standard normal: 95% lie within
DRAWS = 10_000  # bootstrap samples
TIE = 1e-4  # logits that differ by less are tied: so do their probabilities, relative to each other
_DIGIT = 1e-5  # of the scores that rows carry


def place(row: Row) -> Place:
    """The problem that a row is of."""
    return row["task"], row["index"]


def done(rows: Rows) -> list[Row]:
    """Those that did not fail."""
    return [row for row in rows if row["error"] is None]


# --- quality ---


def wilson(share: float, n: int) -> tuple[float, float]:
    """Wilson's 95% interval of a share of `n` trials.

    >>> tuple(round(bound, 4) for bound in wilson(0.5, 10))
    (0.2366, 0.7634)
    """
    middle = share + Z**2 / (2 * n)
    spread = Z * math.sqrt(share * (1 - share) / n + Z**2 / (4 * n**2))
    return (middle - spread) / (1 + Z**2 / n), (middle + spread) / (1 + Z**2 / n)


def bootstrap(values: Sequence[float]) -> tuple[float, float]:
    """The 95% percentile interval of the mean of `values`, resampled with a fixed seed."""
    held = np.asarray(values)
    resampled = np.random.default_rng(0).integers(len(held), size=(DRAWS, len(held)))
    low, high = np.percentile(held[resampled].mean(1), (2.5, 97.5))
    return float(low), float(high)


def scores(rows: Rows, scored: Collection[Place], field: str = "score") -> dict[Place, list[float]]:
    """The scores of each problem, one a seed; 0 for a failed row of a problem that others have a score for."""
    found: dict[Place, list[float]] = {}
    for row in rows if done(rows) else ():
        score = row[field] if row["error"] is None else 0.0 if place(row) in scored else None
        if score is not None:
            found.setdefault(place(row), []).append(float(score))
    return found


def quality(rows: Rows, scored: Collection[Place]) -> dict[str, float | None]:
    """Mean score over the problems with its 95% interval, and the mean of the lenient score.

    Wilson's where every score is right or wrong and every problem was tried once; else a bootstrap over the problems.
    """
    found = scores(rows, scored)
    if not found:
        return dict.fromkeys(("accuracy", "accuracy_low", "accuracy_high", "lenient"))
    means = [statistics.fmean(some) for some in found.values()]
    share = statistics.fmean(means)
    plain = all(len(some) == 1 and some[0] in (0.0, 1.0) for some in found.values())
    low, high = wilson(share, len(means)) if plain else bootstrap(means)
    mild = [statistics.fmean(some) for some in scores(rows, scored, "lenient").values()]
    return {"accuracy": share, "accuracy_low": low, "accuracy_high": high, "lenient": _mean(mild)}


# --- forwards ---


def mean(field: str) -> Callable[[Rows], float | None]:
    """The mean of a field over the rows that have it."""
    return lambda rows: _mean([row[field] for row in done(rows) if row.get(field) is not None])


def ratio(over: str, under: str) -> Callable[[Rows], float | None]:
    """The sum of one field over the sum of another."""

    def figure(rows: Rows) -> float | None:
        some = [row for row in done(rows) if row[over] is not None and row[under] is not None]
        below = sum(row[under] for row in some)
        return sum(row[over] for row in some) / below if below else None

    return figure


def most(field: str) -> Callable[[Rows], float | None]:
    """The largest value of a field."""
    return lambda rows: max((row[field] for row in done(rows) if row[field] is not None), default=None)


# --- drafting: of rows of the verify loop, whose first round is the prompt's ---


def drafting(rows: Rows) -> list[Row]:
    """Those of the verify loop."""
    return [row for row in done(rows) if row.get("accepted") is not None]


def rounds(rows: Rows) -> list[tuple[int, int, int]]:
    """Of every round behind the prompt's: tokens drafted (the deepest path), accepted, and gained, which is one more.

    An end token among the accepted ones is the last of each: what was drafted behind it counts for nothing. Nor do
    tokens to which there was no alternative, and rounds that gained nothing else.
    """
    found = []
    for row in drafting(rows):
        made: Counter[int] = Counter(row["steps"])
        for number, (drafted, accepted) in enumerate(zip(row["drafted"], row["accepted"], strict=True)):
            gained = made[number] - (row["forced"][number] if row.get("forced") else 0)
            if number and gained:
                found.append((drafted, accepted, gained) if accepted < gained else (gained,) * 3)
    return found


def by_position(rows: Rows) -> list[tuple[int, int]]:
    """For each draft position the rounds that accepted it, of the rounds that drafted that far."""
    held = rounds(rows)
    return [
        (sum(accepted >= place for _, accepted, _ in held), sum(drafted >= place for drafted, _, _ in held))
        for place in range(1, max((drafted for drafted, _, _ in held), default=0) + 1)
    ]


def padding(rows: Rows) -> float | None:
    """Share of the positions fed that belong to no row, over whole batches."""
    whole = batches(drafting(rows))
    spare = sum(came_to(some, "padding") for some in whole)
    fed = spare + sum(row["tokens_fed"] for some in whole for row in some)
    return spare / fed if fed else None


def simulated(rows: Rows, cost_ratio: float | None) -> dict[str, float | None]:
    """The speed-up over one forward a token if a forward cost the same however many tokens it is fed.

        tokens gained a round / (drafter's forwards a round * c + 1)

    c is `cost_ratio`, or what the rows say of it; 0 where no drafting model ran, and with nothing known no speed-up.
    """
    held, own = rounds(rows), drafting(rows)
    if not held:
        return dict.fromkeys(("cost_ratio", "simulated_speed_up"))
    asked = sum(row["draft_forwards"] for row in own)
    known = cost_ratio if cost_ratio is not None else mean("cost_ratio")(own)
    cost = known if asked else 0.0
    gained = sum(gained for _, _, gained in held)
    return {"cost_ratio": cost, "simulated_speed_up": None if cost is None else gained / (asked * cost + len(held))}


# What rows of the verify loop say besides.
DRAFTING: dict[str, Callable[[Rows], float | None]] = {
    "forwards_per_token": lambda rows: ratio("nfe", "generated")(drafting(rows)),
    "acceptance_length": lambda rows: _mean([gained for _, _, gained in rounds(rows)]),
    "draft_depth": lambda rows: _mean([drafted for drafted, _, _ in rounds(rows)]),
    "draft_forwards": mean("draft_forwards"),
    "deviation": mean("deviation"),
    "deviation_per_token": lambda rows: ratio("deviation", "generated")(drafting(rows)),
    "padding": padding,
}


def distance(rows: Rows) -> float | None:
    """The Fréchet distance of the pictures from true ones of the same captions, in features of the scorer's own."""
    some = [row for row in done(rows) if row.get("features")]
    if len(some) < 2:
        return None
    made, true = (np.array([row[name] for row in some]) for name in ("features", "true_features"))
    return apart(made, true)


def part(name: str) -> Callable[[Rows], float | None]:
    """Mean seconds that a problem spent in a part of a model whose tokens are vectors."""
    return lambda rows: _mean([row["parts"][name] for row in done(rows) if name in (row.get("parts") or ())])


def acceptance_rate(rows: Rows) -> float | None:
    """Share of the drafted vectors that were accepted."""
    some = [row for row in done(rows) if row.get("tested")]
    tested = sum(sum(row["tested"]) for row in some)
    return sum(sum(row["kept"]) for row in some) / tested if tested else None


def by_forward(rows: Rows) -> list[tuple[int, int]]:
    """For each forward of the target, the drafted vectors that it accepted, and that it tested, over all rows."""
    found: list[tuple[int, int]] = []
    for row in done(rows):
        pairs = list(zip(row.get("kept") or (), row.get("tested") or (), strict=True))
        found += [(0, 0)] * (len(pairs) - len(found))
        for at, (kept, tested) in enumerate(pairs):
            found[at] = found[at][0] + kept, found[at][1] + tested
    return found


# What rows of the continuous loop say besides.
IMAGE_FIGURES: dict[str, Callable[[Rows], float | None]] = {
    "acceptance_rate": acceptance_rate,
    "seconds": lambda rows: _mean([row["seconds"] for row in done(rows) if row.get("parts")]),
    "backbone_seconds": part("backbone"),
    "head_seconds": part("head"),
    "draft_backbone_seconds": part("draft backbone"),
    "draft_head_seconds": part("draft head"),
}


# What is read off the rows of a sampler alone.
FIGURES: dict[str, Callable[[Rows], float | None]] = {
    "nfe": mean("nfe"),
    "nfe_to_end": mean("nfe_to_end"),
    "tokens_per_forward": ratio("generated", "nfe"),
    "tokens_fed": mean("tokens_fed"),
    "fed_per_token": ratio("tokens_fed", "generated"),
    "peak_memory": most("peak_memory"),
    "distance": distance,
    **DRAFTING,
    **IMAGE_FIGURES,
}


# --- speed ---


def batches(rows: Rows) -> list[list[Row]]:
    """The rows of each batch; batches that are not whole are left out."""
    found: dict[str, list[Row]] = {}
    for row in done(rows):
        found.setdefault(row["batch"]["id"], []).append(row)
    return [some for some in found.values() if len(some) == some[0]["batch"]["rows"]]


def came_to(some: Rows, field: str) -> Any:
    """What a whole batch cost: each of its rows tells what it had by the time that it left."""
    return max(row["batch"][field] for row in some)


def device(rows: Rows) -> str | None:
    """What most of the rows were made on; speeds are of this device alone."""
    found = Counter(row["device"] for row in done(rows))
    return found.most_common(1)[0][0] if found else None


def waiting(rows: Rows) -> str | None:
    """Why no row could enter a batch that was under way; None where they could, or none had to."""
    return next((row["batch"]["waits"] for row in done(rows) if row["batch"]["waits"]), None)


def speed(rows: Rows, device: str | None) -> dict[str, float | None]:
    """Over the batches on `device`: the median of the generated tokens per second, with quartiles, and of the seconds a
    forward.

    Rows enter a batch as others leave it, so a batch is all that flows through it, filled and drained once. Tokens
    count up to the first end token.
    """
    some = [batch for batch in batches(rows) if batch[0]["device"] == device]
    timed = [batch for batch in some if came_to(batch, "seconds") > 0]
    names = ("tokens_per_second", "tokens_per_second_low", "tokens_per_second_high", "seconds_per_forward")
    if not timed:
        return dict.fromkeys(names)
    rates = [sum(row["generated"] for row in batch) / came_to(batch, "seconds") for batch in timed]
    paces = [came_to(batch, "seconds") / max(1, came_to(batch, "forwards")) for batch in timed]
    low, middle, high = (float(bound) for bound in np.percentile(rates, (25, 50, 75)))
    return dict(zip(names, (middle, low, high, statistics.median(paces)), strict=True))


# --- against references ---


def floor_share(rows: Rows, oracle: Rows | None) -> float | None:
    """Forwards of the oracle over those of the sampler, on the problems that both finished."""
    pairs = _pairs(rows, oracle)
    mine = sum(own["nfe"] for own, _ in pairs)
    return sum(its["nfe"] for _, its in pairs) / mine if mine else None


def agreement(rows: Rows, sequential: Rows | None) -> dict[str, float | None]:
    """How far the tokens are those of the sequential decode, on the problems that both finished.

    `agreement` is the mean share of places, up to the end of the longer text, that hold the same token; `identical` the
    share of rows with no other token.
    """
    pairs = [(own["tokens"], its["tokens"]) for own, its in _pairs(rows, sequential)]
    alike = [sum(a == b for a, b in zip(mine, its, strict=False)) / max(len(mine), len(its), 1) for mine, its in pairs]
    return {"agreement": _mean(alike), "identical": _mean([float(mine == its) for mine, its in pairs])}


def mismatches(rows: Rows, sequential: Rows | None) -> dict[str, int | None]:
    """How many rows have other tokens than the sequential decode, and how many of them part from it at a tie.

    A tie: where the first other token stands, the model finds both equally likely but for a share of `TIE`, as far as
    the five digits of a row's scores tell. Only scores of the verify loop can say.
    """
    pairs = _pairs(rows, sequential)
    other = [(mine, its) for mine, its in pairs if mine["tokens"] != its["tokens"]]
    looped = bool(drafting(rows))
    return {"mismatches": len(other) if pairs else None, "ties": sum(_tie(*pair) for pair in other) if looped else None}


def _tie(mine: Row, its: Row) -> bool:
    """Whether two rows part where both tokens are equally likely."""
    for at, (one, two) in enumerate(zip(mine["tokens"], its["tokens"], strict=False)):
        if one != two:
            a, b = mine["scores"][at], its["scores"][at]
            return a is not None and b is not None and abs(a - b) <= TIE * max(a, b) + _DIGIT
    return False


def _pairs(rows: Rows, references: Rows | None) -> list[tuple[Row, Row]]:
    """Each row with the reference's of the same problem, which does not depend on the seed, where both finished."""
    known: dict[Place, Row] = {}
    for row in done(references or ()):
        known.setdefault(place(row), row)
    return [(row, known[place(row)]) for row in done(rows) if place(row) in known]


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None
