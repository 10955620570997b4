"""Defines every figure of a comparison as a function of the rows of one sampler.

A figure that does not apply is None. A failed row counts as failed, and as a wrong answer if the problem is scored;
it is excluded from all other figures.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from ..images.distance import feature_distance
from ..io.jsonl import Row

Rows = Sequence[Row]
ProblemKey = tuple[str, int]  # a problem: task and index

Z = 1.959963984540054  # 97.5% quantile of the standard normal distribution
DRAWS = 10_000  # bootstrap samples
TIE = 1e-4  # logits that differ by less count as tied: the relative difference of their probabilities is as small
_DIGIT = 1e-5  # resolution of the scores in rows


def problem_key(row: Row) -> ProblemKey:
    """Identifies the problem of a row."""
    return row["task"], row["index"]


def successful(rows: Rows) -> list[Row]:
    """The rows that did not fail."""
    return [row for row in rows if row["error"] is None]


# --- quality ---


def wilson(share: float, n: int) -> tuple[float, float]:
    """Wilson's 95% confidence interval of a proportion over `n` trials.

    >>> tuple(round(bound, 4) for bound in wilson(0.5, 10))
    (0.2366, 0.7634)
    """
    middle = share + Z**2 / (2 * n)
    spread = Z * math.sqrt(share * (1 - share) / n + Z**2 / (4 * n**2))
    return (middle - spread) / (1 + Z**2 / n), (middle + spread) / (1 + Z**2 / n)


def bootstrap(values: Sequence[float]) -> tuple[float, float]:
    """The 95% percentile interval of the mean of `values`, resampled with a fixed seed."""
    array = np.asarray(values)
    resampled = np.random.default_rng(0).integers(len(array), size=(DRAWS, len(array)))
    low, high = np.percentile(array[resampled].mean(1), (2.5, 97.5))
    return float(low), float(high)


def scores(rows: Rows, scored: Collection[ProblemKey], field: str = "score") -> dict[ProblemKey, list[float]]:
    """The scores of each problem, one per seed; 0 for a failed row of a problem that is scored elsewhere."""
    by_problem: dict[ProblemKey, list[float]] = {}
    for row in rows if successful(rows) else ():
        score = row[field] if row["error"] is None else 0.0 if problem_key(row) in scored else None
        if score is not None:
            by_problem.setdefault(problem_key(row), []).append(float(score))
    return by_problem


def quality(rows: Rows, scored: Collection[ProblemKey]) -> dict[str, float | None]:
    """Mean score over the problems with its 95% interval, and the mean of the lenient score.

    The interval is Wilson's if every score is 0 or 1 and every problem has one seed; else a bootstrap over problems.
    """
    by_problem = scores(rows, scored)
    if not by_problem:
        return dict.fromkeys(("accuracy", "accuracy_low", "accuracy_high", "lenient"))
    means = [statistics.fmean(values) for values in by_problem.values()]
    share = statistics.fmean(means)
    binary = all(len(values) == 1 and values[0] in (0.0, 1.0) for values in by_problem.values())
    low, high = wilson(share, len(means)) if binary else bootstrap(means)
    lenient = [statistics.fmean(values) for values in scores(rows, scored, "lenient").values()]
    return {"accuracy": share, "accuracy_low": low, "accuracy_high": high, "lenient": _mean(lenient)}


# --- forwards ---


def mean(field: str) -> Callable[[Rows], float | None]:
    """The mean of a field over the rows that have it."""
    return lambda rows: _mean([row[field] for row in successful(rows) if row.get(field) is not None])


def ratio(over: str, under: str) -> Callable[[Rows], float | None]:
    """The sum of one field over the sum of another."""

    def figure(rows: Rows) -> float | None:
        usable = [row for row in successful(rows) if row[over] is not None and row[under] is not None]
        denominator = sum(row[under] for row in usable)
        return sum(row[over] for row in usable) / denominator if denominator else None

    return figure


def maximum(field: str) -> Callable[[Rows], float | None]:
    """The largest value of a field."""
    return lambda rows: max((row[field] for row in successful(rows) if row[field] is not None), default=None)


# --- drafting: rows of the verify loop, whose first round processes the prompt ---


def drafting(rows: Rows) -> list[Row]:
    """The rows of the verify loop."""
    return [row for row in successful(rows) if row.get("accepted") is not None]


def rounds(rows: Rows) -> list[tuple[int, int, int]]:
    """For every round after the prompt's: tokens drafted (deepest path), accepted, and gained (accepted plus one).

    Counting stops at an accepted end token: tokens drafted after it are ignored. Forced tokens (those without an
    alternative) are ignored too, as are rounds that gained nothing else.
    """
    result = []
    for row in drafting(rows):
        commits: Counter[int] = Counter(row["steps"])
        for number, (drafted, accepted) in enumerate(zip(row["drafted"], row["accepted"], strict=True)):
            gained = commits[number] - (row["forced"][number] if row.get("forced") else 0)
            if number and gained:
                result.append((drafted, accepted, gained) if accepted < gained else (gained,) * 3)
    return result


def by_position(rows: Rows) -> list[tuple[int, int]]:
    """For each draft position, how many rounds accepted it and how many drafted that far."""
    counts = rounds(rows)
    return [
        (sum(accepted >= position for _, accepted, _ in counts), sum(drafted >= position for drafted, _, _ in counts))
        for position in range(1, max((drafted for drafted, _, _ in counts), default=0) + 1)
    ]


def padding(rows: Rows) -> float | None:
    """The share of computed positions that belong to no row, over whole batches."""
    whole = batches(drafting(rows))
    spare = sum(batch_total(some, "padding") for some in whole)
    fed = spare + sum(row["tokens_fed"] for some in whole for row in some)
    return spare / fed if fed else None


def simulated(rows: Rows, cost_ratio: float | None) -> dict[str, float | None]:
    """The speed-up over one forward per token if the cost of a forward did not depend on its number of tokens.

        tokens gained per round / (drafter's forwards per round * c + 1)

    c is `cost_ratio`, or the mean of the rows' own; 0 where no draft model ran. If none is known, the result is None.
    """
    gains, own = rounds(rows), drafting(rows)
    if not gains:
        return {"cost_ratio": mean("cost_ratio")(rows), "simulated_speed_up": None}
    runs = sum(row["draft_forwards"] for row in own)
    known = cost_ratio if cost_ratio is not None else mean("cost_ratio")(own)
    cost = known if runs else 0.0
    gained = sum(gain for _, _, gain in gains)
    return {"cost_ratio": cost, "simulated_speed_up": None if cost is None else gained / (runs * cost + len(gains))}


def weighted_forwards(rows: Rows) -> float | None:
    """For token maps: forwards of both models, with the refiner's weighted by its share of the parameters."""
    maps = [row for row in successful(rows) if row.get("parts") and row["tokens"]]  # vectors have no ids
    return _mean([row["nfe"] + row["draft_forwards"] * (row["cost_ratio"] or 0.0) for row in maps])


# Additional figures of rows of the verify loop.
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
    """The Fréchet distance of the images from reference images of the same captions, in the scorer's features."""
    usable = [row for row in successful(rows) if row.get("features")]
    if len(usable) < 2:
        return None
    generated, references = (np.array([row[name] for row in usable]) for name in ("features", "true_features"))
    return feature_distance(generated, references)


def part(name: str) -> Callable[[Rows], float | None]:
    """Mean seconds per problem in one part of a model of continuous vectors or token maps."""
    return lambda rows: _mean([row["parts"][name] for row in successful(rows) if name in (row.get("parts") or ())])


def acceptance_rate(rows: Rows) -> float | None:
    """Share of the drafted vectors that were accepted."""
    usable = [row for row in successful(rows) if row.get("tested")]
    tested = sum(sum(row["tested"]) for row in usable)
    return sum(sum(row["kept"]) for row in usable) / tested if tested else None


def by_forward(rows: Rows) -> list[tuple[int, int]]:
    """For each forward of the target, how many drafted vectors it accepted and how many it tested, over all rows."""
    counts: list[tuple[int, int]] = []
    for row in successful(rows):
        pairs = list(zip(row.get("kept") or (), row.get("tested") or (), strict=True))
        counts += [(0, 0)] * (len(pairs) - len(counts))
        for forward, (accepted, tested) in enumerate(pairs):
            counts[forward] = counts[forward][0] + accepted, counts[forward][1] + tested
    return counts


# Additional figures of rows of the continuous loop and of token maps.
IMAGE_FIGURES: dict[str, Callable[[Rows], float | None]] = {
    "acceptance_rate": acceptance_rate,
    "seconds": lambda rows: _mean([row["seconds"] for row in successful(rows) if row.get("parts")]),
    "backbone_seconds": part("backbone"),
    "head_seconds": part("head"),
    "draft_backbone_seconds": part("draft backbone"),
    "draft_head_seconds": part("draft head"),
    "transformer_seconds": part("transformer"),
    "refiner_seconds": part("refiner"),
    "weighted_forwards": weighted_forwards,
}


# The figures that need only the sampler's own rows.
FIGURES: dict[str, Callable[[Rows], float | None]] = {
    "nfe": mean("nfe"),
    "nfe_to_end": mean("nfe_to_end"),
    "tokens_per_forward": ratio("generated", "nfe"),
    "tokens_fed": mean("tokens_fed"),
    "fed_per_token": ratio("tokens_fed", "generated"),
    "peak_memory": maximum("peak_memory"),
    "distance": distance,
    **DRAFTING,
    **IMAGE_FIGURES,
}


# --- speed ---


def batches(rows: Rows) -> list[list[Row]]:
    """The rows of each batch; incomplete batches are left out."""
    by_batch: dict[str, list[Row]] = {}
    for row in successful(rows):
        by_batch.setdefault(row["batch"]["id"], []).append(row)
    return [batch for batch in by_batch.values() if len(batch) == batch[0]["batch"]["rows"]]


def batch_total(batch: Rows, field: str) -> Any:
    """The cost of a whole batch: each row records the batch's cost up to the time that the row left it."""
    return max(row["batch"][field] for row in batch)


def device(rows: Rows) -> str | None:
    """The device of most rows; speeds are computed on this device only."""
    counts = Counter(row["device"] for row in successful(rows))
    return counts.most_common(1)[0][0] if counts else None


def queue_reason(rows: Rows) -> str | None:
    """Why rows could not enter a running batch; None if they could, or no row needed to."""
    return next((row["batch"]["waits"] for row in successful(rows) if row["batch"]["waits"]), None)


def speed(rows: Rows, device: str | None) -> dict[str, float | None]:
    """Over the batches on `device`: median and quartiles of generated tokens per second; median seconds per forward.

    Rows enter a batch as others leave it, so one batch includes everything from its filling to its draining. Tokens
    count up to the first end token.
    """
    on_device = [batch for batch in batches(rows) if batch[0]["device"] == device]
    timed = [batch for batch in on_device if batch_total(batch, "seconds") > 0]
    names = ("tokens_per_second", "tokens_per_second_low", "tokens_per_second_high", "seconds_per_forward")
    if not timed:
        return dict.fromkeys(names)
    rates = [sum(row["generated"] for row in batch) / batch_total(batch, "seconds") for batch in timed]
    paces = [batch_total(batch, "seconds") / max(1, batch_total(batch, "forwards")) for batch in timed]
    low, middle, high = (float(bound) for bound in np.percentile(rates, (25, 50, 75)))
    return dict(zip(names, (middle, low, high, statistics.median(paces)), strict=True))


# --- against references ---


def floor_share(rows: Rows, oracle: Rows | None) -> float | None:
    """The oracle's forwards divided by the sampler's forwards, over problems that both finished."""
    pairs = _pairs(rows, oracle)
    forwards = sum(row["nfe"] for row, _ in pairs)
    return sum(reference["nfe"] for _, reference in pairs) / forwards if forwards else None


def agreement(rows: Rows, sequential: Rows | None) -> dict[str, float | None]:
    """Compares each text with the one that sequential decoding gives, on the problems that both samplers finished.

    `agreement` is the mean share of positions, up to the end of the longer text, with the same token; `identical` is
    the share of rows whose tokens are all the same.
    """
    pairs = [(row["tokens"], ref["tokens"]) for row, ref in _pairs(rows, sequential)]
    shares = [sum(a == b for a, b in zip(own, ref, strict=False)) / max(len(own), len(ref), 1) for own, ref in pairs]
    return {"agreement": _mean(shares), "identical": _mean([float(own == ref) for own, ref in pairs])}


def mismatches(rows: Rows, sequential: Rows | None) -> dict[str, int | None]:
    """How many rows differ from the sequential decode, and how many of these first differ at a tie.

    A tie: at the first differing position, the probabilities of both tokens differ by a share of at most `TIE`, within
    the five digits of a row's scores. Ties can be detected in rows of the verify loop only.
    """
    pairs = _pairs(rows, sequential)
    other = [(row, ref) for row, ref in pairs if row["tokens"] != ref["tokens"]]
    has_scores = bool(drafting(rows))
    return {
        "mismatches": len(other) if pairs else None,
        "ties": sum(_tie(*pair) for pair in other) if has_scores else None,
    }


def _tie(row: Row, reference: Row) -> bool:
    """Whether both tokens are equally likely at the first position where two rows differ."""
    for position, (own, other) in enumerate(zip(row["tokens"], reference["tokens"], strict=False)):
        if own != other:
            a, b = row["scores"][position], reference["scores"][position]
            return a is not None and b is not None and abs(a - b) <= TIE * max(a, b) + _DIGIT
    return False


def _pairs(rows: Rows, references: Rows | None) -> list[tuple[Row, Row]]:
    """Pairs each row with the reference row of the same problem (of any seed), if both finished."""
    by_problem: dict[ProblemKey, Row] = {}
    for row in successful(references or ()):
        by_problem.setdefault(problem_key(row), row)
    return [(row, by_problem[problem_key(row)]) for row in successful(rows) if problem_key(row) in by_problem]


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None
