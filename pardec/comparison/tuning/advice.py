"""What `tune` says: one spec, and what speaks for it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .confirming import LOOKS, SURE, Judged, level
from .halving import ASSUMED, Search, Trial

_COLUMNS = ("sampler", "measured", "problems", "accuracy", "drop", "forwards", "fed", "seconds", "verdict")
_LITTLE = 0.1  # accuracy of a baseline below which a drop says little


@dataclass(frozen=True)
class Advice:
    """One spec with its evidence.

    Attributes:
        spec: what to give `generate` as `sampler`.
        arguments: what else to give it: what `tune` was given, and the block length where the advice depends on it.
        verdict: "holds" (its drop is within the bound with `SURE` confidence), "within" (it was, but on too few
            problems to be sure), "default" or "baseline" (nothing else was).
        evidence: one dict a sampler: the baseline, the default and what was looked at on the confirmation problems,
            then what the search knows of every candidate. Costs are means a problem, drops are in points.
        text: all of it in words.
        document: all of it as JSON has it.
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
        """The document as text; written to `path` as well if one is given."""
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
    search: Search,
    judged: Judged,
    environment: Mapping[str, Any],
) -> Advice:
    """Puts a search and its confirmation into words, rows and a document."""
    winner = judged.winner
    block = winner.candidate.block_length
    used = {**arguments, **({} if block is None else {"block_length": block})}
    evidence = [*_confirmed(judged), *(row(one, f"rung {one.rung}", one.why or "finalist") for one in search.trials)]
    use = command(model, winner.candidate.spec, used)
    text = "\n".join([*_sentences(judged, max_drop), f"use it: {use}"])
    document = {
        "model": model,
        "tasks": list(tasks),
        "spec": winner.candidate.spec,
        "arguments": used,
        "command": use,
        "verdict": judged.how,
        "max_drop": max_drop,
        "cost": winner.cost,
        "confidence": SURE,
        "looks": {"made": len(judged.finalists_tried), "accounted_for": LOOKS},
        "decodes": {"budget": budget, "spent": search.spent},
        "problems": {"searched": search.problems, "confirmed": len(judged.baseline.outcomes)},
        "evidence": evidence,
        "text": text,
        "environment": dict(environment),
    }
    return Advice(winner.candidate.spec, used, judged.how, evidence, text, document)


def _confirmed(judged: Judged) -> list[dict[str, Any]]:
    """The rows of what was confirmed, each sampler once."""
    named = {"baseline": judged.baseline, "default": judged.default}
    rows = [row(one, "confirmed", _called(name, one)) for name, one in named.items() if one is not judged.winner]
    for one in judged.finalists_tried:
        if one is not judged.winner and one is not judged.default:
            rows.append(row(one, "confirmed", one.why or "not sure enough"))
    return [row(judged.winner, "confirmed", f"advised: {judged.how}"), *rows]


def _called(name: str, trial: Trial) -> str:
    """What stands behind a row: of the baseline, how much of it was decoded."""
    known = sum(outcome is not ASSUMED for outcome in trial.outcomes)
    count = len(trial.outcomes)
    return name if known == count else f"{name}: decoded on {known}, taken as right on the other {count - known}"


def row(trial: Trial, measured: str, verdict: str) -> dict[str, Any]:
    """One row of the evidence."""
    count = len(trial.outcomes)
    known = trial.drop(level()) if count else None
    return {
        "sampler": trial.candidate.spec,
        "block_length": trial.candidate.block_length,
        "measured": measured,
        "problems": count,
        "accuracy": trial.mean("score") if count else None,
        "drop": known and known.points,
        "drop_low": known and known.low,
        "drop_high": known and known.high,
        "lost": known and known.lost,
        "gained": known and known.gained,
        **{name: trial.mean(name) if count else None for name in ("nfe", "tokens_fed", "seconds")},
        "verdict": verdict,
    }


def table(evidence: Sequence[Mapping[str, Any]], most: int = 12) -> str:
    """The evidence as lines: all that was confirmed, and the best of what was only searched."""
    confirmed = [one for one in evidence if one["measured"] == "confirmed"]
    searched = [one for one in evidence if one["measured"] != "confirmed"]
    rows = [_COLUMNS, *map(_cells, confirmed), *map(_cells, searched[:most])]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    if len(searched) > most:
        lines.append(f"... and {len(searched) - most} more that were searched")
    return "\n".join(lines)


def _cells(one: Mapping[str, Any]) -> tuple[str, ...]:
    block = "" if one["block_length"] is None else f" in blocks of {one['block_length']}"
    if not one["problems"]:
        return one["sampler"] + block, one["measured"], "0", "", "", "", "", "", one["verdict"]
    drop = f"{one['drop']:+.1f} [{one['drop_low']:+.1f}, {one['drop_high']:+.1f}]"
    figures = (f"{one['accuracy']:.1%}", drop, f"{one['nfe']:.2f}", f"{one['tokens_fed']:.0f}", f"{one['seconds']:.3f}")
    return one["sampler"] + block, one["measured"], str(one["problems"]), *figures, one["verdict"]


def command(model: str, spec: str, arguments: Mapping[str, Any]) -> str:
    """How the advice is used on the command line."""
    known = {"stop_ids", "block_align"}  # of Python only
    options = [f"--{name.replace('_', '-')} {value}" for name, value in arguments.items() if name not in known]
    return " ".join(["pardec generate", shlex.quote(model), '-p "..."', "-s", shlex.quote(spec), *options])


def _sentences(judged: Judged, max_drop: float) -> list[str]:
    """What the figures say, in words."""
    winner, baseline, default = judged.winner, judged.baseline, judged.default
    count, drop = len(winner.outcomes), winner.drop(level())
    bound = f"{max_drop:g} point{'' if max_drop == 1 else 's'}"
    sentence = {
        "holds": f"It loses at most {bound} with {SURE:.0%} confidence, {LOOKS} looks accounted for.",
        "within": f"That is within {bound}, but {count} problems cannot make sure of it: "
        f"with {SURE:.0%} confidence it loses at most {drop.high:.1f}.",
        "default": f"Nothing that was looked at stays within {bound}; the default does.",
        "baseline": f"Nothing that was looked at stays within {bound}, and these are the baseline's own tokens.",
    }[judged.how]
    lines = [f"{winner.candidate} drops {drop} points on {count} fresh problems. {sentence}"]
    for name, other in (("the baseline", baseline), ("the default", default)):
        if other is winner or not other.outcomes:
            continue
        (nfe, its), (took, other_took) = ([one.mean(cost) for one in (winner, other)] for cost in ("nfe", "seconds"))
        lines.append(f"Forwards: {nfe:.2f} a problem, {nfe / its:.0%} of the {its:.2f} of {name}, {other.candidate}")
        lines[-1] += f"; seconds: {took:.3f}, {took / other_took:.0%} of its {other_took:.3f}"
        if winner.cost == "tokens_fed":
            lines[-1] += f"; {winner.cost}: {winner.mean(winner.cost) / other.mean(winner.cost):.0%} of its"
        lines[-1] += "." if other is baseline else f", which drops {other.drop(level())}."
    if baseline.mean("score") < _LITTLE:
        lines.append(f"The baseline itself scores {baseline.mean('score'):.1%}: there is little quality to lose.")
    return lines
