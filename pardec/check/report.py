"""What a check found, as text and as JSON values."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from .partings import Parting
from .two_sample import ALPHA, POWER, TwoSample

LOW = 0.75  # a drafter below this share of the expected tokens per round is reported


@dataclass(frozen=True)
class Drafts:
    """How many drafted tokens were accepted.

    Attributes:
        positions: for each draft position, how many rounds accepted it, and how many drafted that far.
        tokens_per_round: mean, and its 95% interval over the rounds; the target's own token counts.
        expected: tokens per round by the drafter's card or by the caller; None: not known.
        source: where that figure is from.
    """

    positions: list[tuple[int, int]]
    tokens_per_round: tuple[float, float, float]
    expected: float | None = None
    source: str = ""


@dataclass(frozen=True)
class Check:
    """The result of `Model.check`.

    Attributes:
        model: the model's name.
        spec: the sampler that was checked, with every parameter.
        reference: the sampler that it was compared with: plain decoding, or the same sampler without its cache.
        promise: what the sampler promises, as `Result.exact`.
        rows: rows that were decoded.
        equal: rows with equal tokens and ends; None where tokens are sampled.
        partings: the first place where each other row parts.
        furthest: the largest difference of logits from the reference's, in nats; None where tokens are sampled.
        bound: the largest difference in nats that counts as rounding; None where tokens are sampled.
        test: the two-sample test; None at temperature 0.
        drafts: what became of drafted tokens; None where nothing was drafted.
        seconds: median seconds of the reference and of the sampler.
        speed_up: seconds of the reference over those of the sampler: median, lowest and highest of the pairs.
        faults: what is wrong, one line each; empty where the sampler does what it promises.
    """

    model: str
    spec: str
    reference: str
    promise: str
    rows: int
    equal: int | None
    partings: list[Parting]
    furthest: float | None
    bound: float | None
    test: TwoSample | None
    drafts: Drafts | None
    seconds: tuple[float, float]
    speed_up: tuple[float, float, float]
    faults: list[str]

    def to_json(self) -> dict[str, Any]:
        """Everything as JSON values."""
        values = asdict(self)
        if self.test is not None:
            values["test"] |= {"finds": self.test.finds, "power": {str(k): v for k, v in self.test.power.items()}}
        return values

    def __str__(self) -> str:
        lines = [f"{self.spec} on {self.model}, against {self.reference}", f"promise: {self.promise}"]
        lines += self._equality() if self.test is None else self._distribution(self.test)
        lines += self._acceptance()
        (plain, own), (middle, low, high) = self.seconds, self.speed_up
        lines.append(f"seconds: {own:.3g} against {plain:.3g}, {middle:.2f} times as fast ({low:.2f}..{high:.2f})")
        return "\n".join([*lines, *self._verdict()])

    def _verdict(self) -> list[str]:
        lossy = ": the sampler is lossy by design" if self.promise == "relaxed" else ""
        return [f"fault: {fault}" for fault in self.faults] or [f"no fault found{lossy}"]

    def _equality(self) -> list[str]:
        lines = [f"tokens: {self.equal} of {self.rows} rows are equal"]
        causes = Counter(parting.cause for parting in self.partings)
        if causes:
            lines[0] += "; why the others part: " + ", ".join(f"{cause} ({count})" for cause, count in causes.items())
        if self.furthest is not None:
            lines.append(f"logits: differ by {self.furthest:.2g} nats at most; up to {self.bound:.2g} is rounding")
        if self.partings:
            lines += _described(first(self.partings))
        return lines

    def _distribution(self, test: TwoSample) -> list[str]:
        verdict = "different" if test.p < ALPHA else "no difference found"
        lines = [f"distribution: {verdict}, p = {test.p:.2g}, {test.rows} rows of each, {test.positions} tokens long"]
        if test.finds is None:
            lines.append("power: low, even very wrong samplers may pass: use more rows, or prompts with many answers")
        else:
            lines.append(
                f"power: finds a sampler that takes the likeliest token in {test.finds:.0%} of the places, with "
                f"probability {POWER:.0%} or more"
            )
        return lines

    def _acceptance(self) -> list[str]:
        if self.drafts is None:
            return []
        shares = [f"{taken / count:.1%}" for taken, count in self.drafts.positions if count]
        mean, low, high = self.drafts.tokens_per_round
        lines = [
            f"accepted, by position of the draft: {', '.join(shares)}",
            f"tokens per round: {mean:.2f} ({low:.2f}..{high:.2f})",
        ]
        if self.drafts.expected is not None:
            lines[-1] += f"; {self.drafts.expected:.2f} by {self.drafts.source}"
            if high < LOW * self.drafts.expected and not self.faults:
                lines.append("  fewer than that: other texts are harder to draft, or the drafter is damaged")
        return lines


def first(partings: list[Parting]) -> Parting:
    """The parting to look at first: a fault if there is one, the earliest of its kind."""
    return min(partings, key=lambda each: (each.cause != "fault", each.position, each.row))


def _described(parting: Parting) -> list[str]:
    names = [
        "the end" if token is None else str(token) if text is None else f"{token} {text!r}"
        for token, text in zip(parting.tokens, parting.texts, strict=True)
    ]
    lines = [f"first place: row {parting.row}, token {parting.position}: {names[0]} in plain decoding, {names[1]} here"]
    if parting.plain is not None and parting.checked is not None:
        lines.append(
            f"  logits of the two: {parting.plain[0]:.4f} and {parting.plain[1]:.4f} in plain decoding, "
            f"{parting.checked[0]:.4f} and {parting.checked[1]:.4f} here (log-probabilities)"
        )
    return [*lines, f"  cause: {parting.cause}: {parting.why}"]
