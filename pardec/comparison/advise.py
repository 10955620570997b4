"""Which sampler for a model: a few candidates, timed in turn on the caller's own prompts within a budget of seconds.

`CANDIDATES` are samplers that docs/choosing.md discusses, per kind of model. Every candidate answers a prompt
before the next prompt begins, in an order that turns, so that a machine that becomes slower slows all of them. A
candidate is advised if it takes the fewest seconds of those whose quality is not below plain decoding's:
with a scorer the sum of scores, without one the tokens of plain decoding.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pardec.models.errors import SpecError

from ..api import Model, load
from ..cards import list_drafters
from ..requests.answer_warnings import SlowDrafts
from ..requests.chat_template import applies, as_message
from ..tasks import Problem, Task
from . import sources

PLAIN = "sequential"
CANDIDATES: Mapping[str, tuple[str, ...]] = {
    "masked": ("threshold+eos", "threshold+eos@dual", "hierarchy:high=0.95+eos", "factor+eos"),
    "ar": ("auto", "lookup:k=7", "suffix"),
}
GAIN = 1.05  # a sampler less than this many times as fast as plain decoding is not advised
_CLOSE = 0.9  # a faster sampler with this share of plain decoding's score is mentioned
MOST = 200  # prompts
LEAST = 3  # prompts that every candidate answers, whatever the budget


@dataclass
class Timed:
    """The time, forwards and score of a candidate on the prompts so far.

    Attributes:
        seconds, tokens: of all prompts; generated tokens before the end token.
        score: the sum of scores; None without a scorer.
        same: prompts whose tokens are those of plain decoding.
        forwards: of the model.
    """

    spec: str
    exact: str = ""
    prompts: int = 0
    seconds: float = 0.0
    tokens: int = 0
    forwards: int = 0
    same: int = 0
    score: float | None = None
    error: str | None = None


@dataclass(frozen=True)
class Recommendation:
    """The advised spec and its evidence: `rows`, plain decoding first; `beside`: name and row of another model."""

    model: str
    spec: str
    rows: list[Timed]
    scored: bool
    beside: tuple[str, Timed] | None = None
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        plain = self.rows[0]
        lines = [f"{self.model}, {plain.prompts} prompts, each by all candidates in turn"]
        heads = ("sampler", "seconds", "times as fast", "forwards", "right" if self.scored else "same tokens")
        cells = [heads]
        for row in self.rows:
            if row.error is not None:
                cells.append((row.spec, "", "", "", row.error))
                continue
            good = row.same if row.score is None else row.score
            shown = f"{good:g} of {row.prompts}"
            times = plain.seconds / row.seconds
            cells.append((row.spec, f"{row.seconds:.2f}", f"{times:.2f}", str(row.forwards), shown))
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines += ["  ".join(map(str.ljust, line, widths)).rstrip() for line in cells]
        return "\n".join([*lines, *self.notes])

    def document(self) -> dict[str, Any]:
        """The recommendation as JSON values."""
        beside = None if self.beside is None else {"model": self.beside[0], **vars(self.beside[1])}
        rows = [dict(vars(row)) for row in self.rows]
        return {"model": self.model, "spec": self.spec, "rows": rows, "beside": beside, "notes": self.notes}


def candidates(model: Model) -> list[str]:
    """Plain decoding and the samplers worth trying on a model; its embedded drafters among them.

    Raises SpecError for a model of images, whose samplers trade quality that no text shows.
    """
    if model.imaging is not None or model.family not in CANDIDATES:
        raise SpecError(f"{model.name} draws images", hint="docs/choosing.md has the figures of image samplers")
    specs = [PLAIN, *CANDIDATES[model.family]]
    if model.family == "ar":
        targets = {model.name, "SmolLM2-135M-Instruct" if model.name.lower().startswith("smollm2") else model.name}
        own = [f"{card.kind}:name={card.name}" for card in list_drafters() if card.target in targets]
        specs += own
        specs += [f'auto:model="{spec}",copy="lookup:k=7"' for spec in own if spec.startswith("eagle")]
    elif model.language_model.decoding_config.attention == "block-causal":
        specs = [PLAIN, "threshold+eos", "threshold+eos@block"]
    return specs


def advise(
    model: Model | str | Path,
    task: str | Task | None = None,
    *,
    prompts: sources.Prompts | None = None,
    scorer: Any = None,
    budget: float = 120.0,
    beside: Model | str | Path | None = None,
    chat: bool | None = None,
    told: Callable[[str], object] = lambda text: None,
    loading: Mapping[str, Any] | None = None,
    **arguments: Any,
) -> Recommendation:
    """Times the candidates for a model on a task or prompts, and advises one.

    Args:
        task, prompts, scorer, chat: as in `compare`; prompts may lack answers, and no scorer is then used.
        budget: seconds after which no further prompt begins. Every candidate answers at least three.
        beside: an autoregressive model whose plain decoding answers the same prompts, for comparison.
        told: called with a line about each stage.
        loading: arguments of `load`.
        arguments: of `generate`, for all candidates.

    Raises SpecError for a model of images, a budget that is no positive number, or wrong arguments.
    """
    if isinstance(budget, bool) or not isinstance(budget, int | float) or not 0 < budget < float("inf"):
        raise SpecError(f"budget must be a positive number of seconds, got {budget!r}", hint="for example budget=120")
    [source] = sources.tasks(task, prompts, scorer).values()
    problems = source.problems(split="heldout" if prompts is not None else "train", n=MOST)
    scored = not sources.unanswered(source)
    loaded = model if isinstance(model, Model) else load(model, **(loading or {}))
    specs, in_chat = candidates(loaded), applies(loaded, chat)
    other = beside if beside is None or isinstance(beside, Model) else load(beside)
    if other is not None and other.family != "ar":
        raise SpecError(f"{other.name} is not autoregressive", hint="name a model that decodes one token per forward")
    if other is not None:
        other_chat = applies(other, chat)
    rows = [Timed(spec) for spec in specs]
    reference = Timed(PLAIN)
    settings = {"max_new_tokens": source.tokens, **arguments}
    told(f"{len(rows)} candidates, {len(problems)} prompts, at most about {budget:g} s")
    _decode(loaded, rows, problems[0], source, {**settings, "max_new_tokens": 2}, in_chat, scored, order=0)  # warms up
    rows = [Timed(row.spec, error=row.error) for row in rows]
    end = time.perf_counter() + budget
    for index, problem in enumerate(problems):
        if index >= LEAST and time.perf_counter() >= end:
            break
        _decode(loaded, rows, problem, source, settings, in_chat, scored, order=index)
        if other is not None:
            _decode(other, [reference], problem, source, settings, other_chat, scored, order=0)
    chosen = _chosen(rows)
    notes = list(_notes(loaded, rows, chosen, other, reference, scored))
    pair = None if other is None else (other.name, reference)
    return Recommendation(loaded.name, chosen.spec, rows, scored, pair, notes)


def _decode(
    model: Model,
    rows: Sequence[Timed],
    problem: Problem,
    task: Task,
    settings: Mapping[str, Any],
    in_chat: bool,
    scored: bool,
    *,
    order: int,
) -> None:
    """Decodes one problem by every candidate, beginning with another one each time."""
    prompt = as_message(problem.prompt) if in_chat else problem.prompt
    tokens: dict[str, list[int]] = {}
    for row in [*rows[order % len(rows) :], *rows[: order % len(rows)]]:
        if row.error is not None:
            continue
        try:
            with warnings.catch_warnings():  # the table says which candidates are slower
                warnings.simplefilter("ignore", SlowDrafts)
                result = model.generate(prompt, sampler=row.spec, **{**settings, **(problem.settings or {})})
        except (SpecError, ValueError) as error:  # a candidate that does not go with this model or these arguments
            if row.spec == PLAIN:
                raise
            row.error = str(error)
            continue
        row.exact, tokens[row.spec] = result.exact, result.tokens[0]
        row.prompts += 1
        row.seconds += result.timing.total_s
        row.tokens += sum(result.generated)
        row.forwards += sum(result.nfe)
        if scored:
            row.score = (row.score or 0.0) + (task.score(problem, (result.text or [""])[0]) or 0.0)
    for row in rows:
        row.same += row.spec in tokens and tokens[row.spec] == tokens.get(PLAIN)


def _chosen(rows: Sequence[Timed]) -> Timed:
    plain = rows[0]
    kept = [row for row in rows if row.error is None and _keeps(row, plain)]
    fastest = min(kept, key=lambda row: row.seconds)
    return fastest if fastest.seconds * GAIN <= plain.seconds else plain


def _keeps(row: Timed, plain: Timed) -> bool:
    """Whether a candidate is as good as plain decoding on these prompts."""
    return row.same == row.prompts if row.score is None or plain.score is None else row.score >= plain.score


def _close(rows: Sequence[Timed], plain: Timed) -> Timed | None:
    """The best of the faster candidates, where it has at least 0.9 of the score of plain decoding."""
    faster = [row for row in rows if row.error is None and row.score and row.seconds * GAIN <= plain.seconds]
    best = max(faster, key=lambda row: (row.score or 0.0, -row.seconds), default=None)
    return best if best is not None and (best.score or 0.0) >= _CLOSE * (plain.score or 0.0) else None


def _notes(
    model: Model, rows: Sequence[Timed], chosen: Timed, other: Model | None, reference: Timed, scored: bool
) -> Iterator[str]:
    plain = rows[0]
    if plain.prompts < 10:
        yield f"only {plain.prompts} prompts: a larger budget, or pardec tune, gives more certainty"
    if not scored:
        yield "without answers to score, only samplers that gave the tokens of plain decoding are advised"
    elif not chosen.exact.startswith("greedy"):
        yield "the advised sampler may give other tokens; pardec tune tests its quality on more prompts"
    if chosen.spec == PLAIN:
        yield f"no sampler of the same quality was at least {GAIN:g} times as fast as plain decoding"
        if (close := _close(rows, plain)) is not None:
            yield (
                f"{close.spec} is {plain.seconds / close.seconds:.3g} times as fast with {close.score:g} right in "
                f"place of {plain.score:g}, which may be chance; pardec tune tests it on more prompts"
            )
    if other is not None:
        ours, theirs = chosen.tokens / chosen.seconds, reference.tokens / reference.seconds
        which = "faster" if theirs > ours else "slower"
        right = "" if reference.score is None else f", right {reference.score:g} of {reference.prompts}"
        yield (
            f"plain decoding of {other.name} is {which}: {theirs:.1f} tokens per second against {ours:.1f}, "
            f"{reference.seconds:.2f} s for the same prompts{right}"
        )
