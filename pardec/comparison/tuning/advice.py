"""The result of `tune`: one spec and its evidence."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .confirming import CONFIDENCE, LEAST_PROBLEMS, MAX_CONFIRMED, Judgement, level, problem_count
from .halving import ASSUMED, SearchResult, Trial
from .paired import drop as drop_between

_COLUMNS = ("sampler", "measured", "problems", "accuracy", "drop", "forwards", "fed", "seconds", "verdict")
_LOW_ACCURACY = 0.1  # accuracy of a baseline below which a drop says little


@dataclass(frozen=True)
class Advice:
    """One spec with its evidence.

    Attributes:
        spec: the `sampler` argument for `generate`.
        arguments: the other arguments for `generate`: the ones given to `tune`, and the block length if it was tuned.
        verdict: "holds" (its drop is within the bound with confidence `CONFIDENCE`), "within" (it is, but on too few
            problems to be sure), "default" or "baseline" (no other candidate was within the bound), or "unsure" (too
            few problems to advise anything; the spec is the default).
        evidence: one dict per sampler: the baseline, the default and the finalists on the confirmation problems, then
            every candidate on the search problems. Costs are means per problem, drops are in points.
        text: the advice in words.
        document: the advice as plain values for JSON.
    """

    spec: str
    arguments: Mapping[str, Any]
    verdict: str
    evidence: list[dict[str, Any]]
    text: str
    document: dict[str, Any] = field(repr=False)

    def __str__(self) -> str:
        return self.text

    def to_json(self, path: str | Path | None = None) -> str:
        """The document as JSON text, also written to `path` if given."""
        text = json.dumps(self.document, indent=1, ensure_ascii=False)
        if path is not None:
            Path(path).write_text(text + "\n", encoding="utf-8")
        return text


def advice(
    *,
    model: str,
    tasks: Sequence[str],
    arguments: Mapping[str, Any],
    max_drop: float,
    budget: int,
    search: SearchResult,
    judgement: Judgement,
    environment: Mapping[str, Any],
) -> Advice:
    """Describes a search and its confirmation in words, rows and a document."""
    winner = judgement.winner
    block = winner.candidate.block_length
    options = {**arguments, **({} if block is None else {"block_length": block})}
    evidence = [
        *_confirmed_rows(judgement),
        *(row(trial, f"rung {trial.rung}", trial.reason or "finalist") for trial in search.trials),
    ]
    use = command(model, winner.candidate.spec, options)
    text = "\n".join([*_sentences(judgement, max_drop), f"use it: {use}"])
    document = {
        "model": model,
        "tasks": list(tasks),
        "spec": winner.candidate.spec,
        "arguments": options,
        "command": use,
        "verdict": judgement.verdict,
        "max_drop": max_drop,
        "cost": winner.cost,
        "confidence": CONFIDENCE,
        "looks": {"made": len(judgement.trials), "accounted_for": MAX_CONFIRMED},
        "decodes": {"budget": budget, "spent": search.spent},
        "problems": {"searched": search.problems, "confirmed": len(judgement.baseline.outcomes)},
        "evidence": evidence,
        "text": text,
        "environment": dict(environment),
    }
    return Advice(winner.candidate.spec, options, judgement.verdict, evidence, text, document)


def _confirmed_rows(judgement: Judgement) -> list[dict[str, Any]]:
    """The rows of the confirmation, each sampler once."""
    roles = {"baseline": judgement.baseline}
    if judgement.default is not judgement.baseline:
        roles["default"] = judgement.default
    rows = [
        row(trial, "confirmed", _baseline_note(name, trial))
        for name, trial in roles.items()
        if trial is not judgement.winner
    ]
    for trial in judgement.trials:
        if trial is not judgement.winner and trial is not judgement.default:
            rows.append(row(trial, "confirmed", trial.reason or "not sure enough"))
    return [row(judgement.winner, "confirmed", f"advised: {judgement.verdict}"), *rows]


def _baseline_note(name: str, trial: Trial) -> str:
    """The verdict column of the baseline or default: names how many outcomes were decoded and how many assumed."""
    decoded = sum(outcome is not ASSUMED for outcome in trial.outcomes)
    count = len(trial.outcomes)
    return name if decoded == count else f"{name}: decoded on {decoded}, assumed right on the other {count - decoded}"


def row(trial: Trial, measured: str, verdict: str) -> dict[str, Any]:
    """One row of the evidence."""
    count = len(trial.outcomes)
    drop = trial.drop(level()) if count else None
    return {
        "sampler": trial.candidate.spec,
        "block_length": trial.candidate.block_length,
        "measured": measured,
        "problems": count,
        "accuracy": trial.mean("score") if count else None,
        "drop": drop and drop.points,
        "drop_low": drop and drop.low,
        "drop_high": drop and drop.high,
        "lost": drop and drop.lost,
        "gained": drop and drop.gained,
        **{name: trial.mean(name) if count else None for name in ("nfe", "tokens_fed", "seconds")},
        "verdict": verdict,
    }


def table(evidence: Sequence[Mapping[str, Any]], limit: int = 12) -> str:
    """The evidence as lines of text: everything confirmed, and the best candidates of the search."""
    confirmed = [row for row in evidence if row["measured"] == "confirmed"]
    searched = [row for row in evidence if row["measured"] != "confirmed"]
    rows = [_COLUMNS, *map(_cells, confirmed), *map(_cells, searched[:limit])]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    if len(searched) > limit:
        lines.append(f"... and {len(searched) - limit} more candidates of the search")
    return "\n".join(lines)


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    block = "" if row["block_length"] is None else f" in blocks of {row['block_length']}"
    if not row["problems"]:
        return row["sampler"] + block, row["measured"], "0", "", "", "", "", "", row["verdict"]
    drop = f"{row['drop']:+.1f} [{row['drop_low']:+.1f}, {row['drop_high']:+.1f}]"
    figures = (f"{row['accuracy']:.1%}", drop, f"{row['nfe']:.2f}", f"{row['tokens_fed']:.0f}", f"{row['seconds']:.3f}")
    return row["sampler"] + block, row["measured"], str(row["problems"]), *figures, row["verdict"]


def command(model: str, spec: str, arguments: Mapping[str, Any]) -> str:
    """The command line that uses the advice."""
    python_only = {"stop_ids", "block_align"}  # arguments that the command line does not have
    options = [f"--{name.replace('_', '-')} {value}" for name, value in arguments.items() if name not in python_only]
    return " ".join(["pardec generate", shlex.quote(model), '-p "..."', "-s", shlex.quote(spec), *options])


def _sentences(judgement: Judgement, max_drop: float) -> list[str]:
    """The figures in words."""
    winner, baseline, default = judgement.winner, judgement.baseline, judgement.default
    count, drop = len(winner.outcomes), winner.drop(level())
    bound = f"{max_drop:g} point{'' if max_drop == 1 else 's'}"
    if judgement.verdict == "unsure":
        plural, verb = ("", "is") if count == 1 else ("s", "are")
        could = drop_between([1.0] * count, [1.0] * count, level()).high
        return [
            f"{count} fresh problem{plural} {verb} too few for advice: a sampler that is right on all may still lose "
            f"{could:.0f} points. At least {LEAST_PROBLEMS} are needed to confirm, and as many to search; "
            f"{problem_count(max_drop)} can show a loss within {bound}. {winner.candidate} is just the default."
        ]
    sentence = {
        "holds": f"It loses at most {bound} with {CONFIDENCE:.0%} confidence, corrected for {MAX_CONFIRMED} tests.",
        "within": f"That is within {bound}, but {count} problems are too few to be sure: "
        f"with {CONFIDENCE:.0%} confidence it loses at most {drop.high:.1f}.",
        "default": f"No tested candidate stays within {bound}; the default does.",
        "baseline": f"No tested candidate stays within {bound}, so this is the baseline itself.",
    }[judgement.verdict]
    lines = [f"{winner.candidate} drops {drop} points on {count} fresh problems. {sentence}"]
    for name, other in (("the baseline", baseline), ("the default", default)):
        if other is winner or not other.outcomes or (name == "the default" and other is baseline):
            continue
        (nfe, base), (time, other_time) = (
            [trial.mean(cost) for trial in (winner, other)] for cost in ("nfe", "seconds")
        )
        lines.append(
            f"Forwards: {nfe:.2f} per problem, {nfe / base:.0%} of the {base:.2f} of {name}, {other.candidate}"
        )
        lines[-1] += f"; seconds: {time:.3f}, {time / other_time:.0%} of its {other_time:.3f}"
        if winner.cost == "tokens_fed":
            lines[-1] += f"; {winner.cost}: {winner.mean(winner.cost) / other.mean(winner.cost):.0%} of its"
        lines[-1] += "." if other is baseline else f", which drops {other.drop(level())}."
    if baseline.mean("score") < _LOW_ACCURACY:
        lines.append(f"The baseline itself scores {baseline.mean('score'):.1%}: there is little quality to lose.")
    return lines
