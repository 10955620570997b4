"""Measures the claims of papers on a masked model that writes text, by its answers to instructions.

    python benchmarks/text_claims.py --model FOLDER --parent FILE.gguf --prompts spec_bench.jsonl --run runs/text-claims
        [--count 24 --every 3] [--max-new-tokens 32] [--quantize int8 --activations int8] [--minutes 60]
        [--timed 12] [--only answers ...] [--out benchmarks/claims.md]

Prompts are lines of JSON with `turns`, as for masked_answers.py. Each method is swept, and judged against `threshold`
swept over tau, on the same prompts: intervals are those of a paired bootstrap over prompts.

answers: every method on the prompts. An answer is decoded once and judged three times. *Likelihood* is the parent's
    geometric mean probability of its tokens (0 for an empty answer), encoded with the parent's tokenizer where the two
    differ. *Agreement* is the share of tokens that the model's own sequential decoding has at the same place.
    *Variety* is the share of different pairs of neighbouring tokens: text that repeats itself has little.
template: Prophet where the answer's place is known: a sentence to repeat with one word changed, after fixed words.
filler: Prophet on the same sentences in a canvas twice as long as asked for, most of it after the answer.
seconds: the settings of `answers` take turns on `--timed` of the prompts, short and long ones. Seconds are the
    process's own, which other programs change less than those on the clock.

Other settings are decoded in the order of the lists below, each in a folder of `--run`, the shortest prompts first.
After `--minutes` the page is written from what is done: a setting is compared on the prompts that it and all settings
of the reference have done. The same command goes on. Sections are written to the page of claims.py, which keeps its
others.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import claims
import curves
import fewer_forwards
import masked_answers
import numpy as np
import torch

import pardec
from pardec.comparison import Run, curve_table, metrics
from pardec.environment import processor
from pardec.tasks import FileTask
from pardec.training.texts import chat_ids

THRESHOLD = tuple(f"threshold:tau={tau}" for tau in (0.9, 0.7, 0.5, 0.4, 0.3))  # the reference
LOWER = ",early=3,mid=2,late=1"  # two fifths of Prophet's published gaps
OPENING = "The new sentence is:"
ANSWER = 16  # tokens of the gap in a template
LEAST = 8  # prompts of a setting that is shown
MEANINGS = {
    "likelihood": "the parent's geometric mean probability per token",
    "agreement": "the share of tokens that `sequential` has at the same place",
    "variety": "the share of different pairs of neighbouring tokens",
    "right": "answers that are exactly right",
}
Row = Mapping[str, Any]
Quality = Callable[[Row], float]
Part = Callable[[argparse.Namespace, pardec.Model], "dict[str, str]"]


def swept(spec: str, *values: float) -> list[str]:
    """A spec with each value in the place of `{}`."""
    return [spec.format(value) for value in values]


def answer_settings(new: int) -> list[str]:
    """The settings of `answers`, with low thresholds too: at high ones an unsure model commits one token at a time."""
    return [
        *THRESHOLD,
        *swept("credit+threshold:tau={}", 0.9, 0.7, 0.5, 0.4),
        *swept("localleap:relaxed={}", 0.7, 0.5, 0.4, 0.3),
        f"fixed:steps={new}+prophet",
        *swept(f"fixed:steps={new}+prophet:gap=mean,early={{0}},mid={{0}},late={{0}}", 4, 2),
        "sequential@dkv",
        *swept("threshold:tau={}@dkv", 0.7, 0.5, 0.4),
        *swept("fixed:steps={}", new // 2, new // 4),
        *swept("factor:f={}", 1, 2),
        *swept("entropy_bound:gamma={}", 0.3, 1),
        *swept("hierarchy:high={}", 0.9, 0.7),
        "klass:tau=0.5",
        *swept("lopa+threshold:tau={}", 0.7, 0.5),
        "multiblock+threshold:tau=0.5",
        "freedave+threshold:tau=0.7",
        *swept("credit:free=true+threshold:tau={}", 0.7, 0.5),
        "localleap:radius=1,relaxed=0.3",
        "threshold:tau=0.5@dual",
        "threshold:tau=0.5@prefix",
    ]


def with_eos(spec: str) -> str:
    """The spec with the rule that ends a row at its end token."""
    body, mark, cache = spec.partition("@")
    return f"{body}+eos{mark}{cache}"


def settings_of(given: argparse.Namespace) -> list[str]:
    """The settings of `answers`, sequential decoding first."""
    return [with_eos(spec) for spec in ("sequential", *answer_settings(given.max_new_tokens))]


def slug(spec: str) -> str:
    """A setting's folder."""
    return re.sub(r"\W+", "-", spec).strip("-")


class OutOfTime(BaseException):
    """The minutes are over."""


@contextmanager
def limited(minutes: float | None) -> Iterator[None]:
    """Leaves its block when the minutes are over; rows that are decoded are saved."""

    def stop(*_: object) -> None:
        raise OutOfTime

    if minutes is not None:
        signal.signal(signal.SIGALRM, stop)
        signal.setitimer(signal.ITIMER_REAL, 60 * minutes)
    try:
        with suppress(OutOfTime):
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def decode(
    given: argparse.Namespace,
    model: pardec.Model,
    part: str,
    problems: Sequence[Row],
    specs: Sequence[str],
    **more: Any,
) -> dict[str, list[Row]]:
    """Decodes all problems with every setting until the minutes are over; the rows of each that are done."""
    folder = given.run / part
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "prompts.jsonl"
    file.write_text("".join(json.dumps(problem) + "\n" for problem in problems), encoding="utf-8")
    with limited(given.minutes):
        for spec in specs:
            pardec.compare(
                model, FileTask(file, scorer="exact", name=part), [spec], references=False, replays=0, warm_up=False,
                limit=len(problems), batch_size=given.batch, out=folder / slug(spec), resume=True, chat=True, **more,
            )  # fmt: skip
            print(f"{part}: {spec} is done", file=sys.stderr, flush=True)
    begun = [spec for spec in specs if (folder / slug(spec) / "config.json").is_file()]
    return {spec: metrics.successful(Run.load(folder / slug(spec)).rows) for spec in begun}


def likelihood(parent: pardec.Model, model: pardec.Model, asked: Sequence[str], file: Path) -> Quality:
    """The parent's geometric mean probability per token of an answer; computed values are kept in a file."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    known = {(number, tuple(tokens)): value for number, tokens, value in map(json.loads, lines)}

    def probability(row: Row) -> float:
        number, tokens = int(row["problem"]), tuple(before_end(model, row["tokens"]))
        if (number, tokens) not in known:  # many settings give the same answer
            answer = masked_answers.in_tokens_of(parent, model, list(tokens))
            nats = masked_answers.nats(parent, chat_ids(parent, asked[number]), answer)
            known[number, tokens] = 0.0 if nats is None else math.exp(nats)
            with file.open("a", encoding="utf-8") as opened:
                opened.write(json.dumps([number, tokens, known[number, tokens]]) + "\n")
        return known[number, tokens]

    return probability


def agreement(model: pardec.Model, sequential: Iterable[Row]) -> Quality:
    """The share of equal tokens, over the longer of the two answers; 1 where both are empty."""
    own = {row["problem"]: before_end(model, row["tokens"]) for row in sequential}

    def quality(row: Row) -> float:
        answer, other = before_end(model, row["tokens"]), own[row["problem"]]
        longer = max(len(answer), len(other))
        return sum(a == b for a, b in zip(answer, other, strict=False)) / longer if longer else 1.0

    return quality


def variety(model: pardec.Model) -> Quality:
    """The share of different pairs of neighbouring tokens in the answer; 1 where it has no pair."""

    def quality(row: Row) -> float:
        answer = before_end(model, row["tokens"])
        return masked_answers.distinct([answer], 2) if len(answer) > 1 else 1.0

    return quality


def before_end(model: pardec.Model, tokens: Sequence[int]) -> list[int]:
    """The tokens before the first end token."""
    ends = model.language_model.decoding_config.eos_ids
    return list(tokens[: next((at for at, token in enumerate(tokens) if token in ends), len(tokens))])


@dataclass(frozen=True)
class Judged:
    """A setting on the prompts that it and the reference finished: its figures and its gains over the reference."""

    prompts: int
    figures: Mapping[str, curve_table.Setting]
    gains: Mapping[str, curve_table.Interval]


def judged(
    rows: Mapping[str, Sequence[Row]], qualities: Mapping[str, Quality], reference: Sequence[str]
) -> dict[str, Judged]:
    """The settings with at least `LEAST` finished prompts, each paired with the reference's settings."""
    found = {}
    for spec in rows:
        names = list(dict.fromkeys((spec, *reference)))
        common = set.intersection(*({row["problem"] for row in rows.get(name, ())} for name in names))
        if len(common) < LEAST:
            continue
        figures, gains = {}, {}
        for quality, judge in qualities.items():
            scored = {
                name: [{**row, "score": judge(row)} for row in rows[name] if row["problem"] in common] for name in names
            }
            settings = {one.sampler: one for one in curve_table.settings(scored, names)}
            figures[quality] = settings[spec]
            if spec not in reference:
                gains[quality] = curve_table.accuracy_gain(settings[spec], [settings[name] for name in reference])
        found[spec] = Judged(len(common), figures, gains)
    return found


def table(found: Mapping[str, Judged]) -> str:
    """One line for each setting: its costs, and each quality in percent, beside the reference at equal forwards."""
    qualities = list(next(iter(found.values())).figures)
    head = ["sampler", "prompts", "forwards", "tokens per forward", "positions per token"]
    lines = [[*head, *(cell for quality in qualities for cell in (quality, "above `threshold`"))]]
    for spec, one in found.items():
        costs = one.figures[qualities[0]]
        fed = costs.costs["tokens_fed"].sum() / max(costs.generated.sum(), 1)
        cells = [f"`{curves.bare(spec)}`", str(one.prompts), f"{costs.cost():.1f}"]
        cells += [f"{costs.tokens_per_forward:.2f}", f"{fed:.1f}"]
        for quality in qualities:
            scores = one.figures[quality].score
            low, high = metrics.bootstrap(scores.tolist())
            gain = asdict(one.gains[quality]) if quality in one.gains else None
            points = gain and {key: value if value is None else 100 * value for key, value in gain.items()}
            cells += [f"{100 * scores.mean():.1f} ({100 * low:.0f}..{100 * high:.0f})", curve_table.interval(points, 1)]
        lines.append(cells)
    return curves.table(lines).strip()


def setup(given: argparse.Namespace) -> str:
    """The processor and the types of numbers."""
    packed = f", the model in {given.quantize} with activations in {given.activations or 'float32'}"
    return f"{processor()}, one thread{packed if given.quantize else ''}"


def section(given: argparse.Namespace, found: Mapping[str, Judged], specs: Sequence[str], about: str) -> str:
    """A part of the page: its conditions, its table, and what is not done."""
    parts = [masked_answers.about(given.model).strip(), about, f"`{given.command}`", f"{setup(given)}."]
    if found:
        meanings = "; ".join(f"*{quality}*: {MEANINGS[quality]}" for quality in next(iter(found.values())).figures)
        above = "points above the curve of `threshold` at equal forwards, by a paired bootstrap over prompts"
        parts += [f"In percent, with 95% intervals: {meanings}; *above `threshold`*: {above}.", table(found)]
    missing = [f"`{curves.bare(spec)}`" for spec in specs if spec not in found]
    parts += [f"Not done on {LEAST} prompts: {', '.join(missing)}."] if missing else []
    return "\n\n".join(part for part in parts if part)


def run_answers(given: argparse.Namespace, model: pardec.Model) -> dict[str, str]:
    asked = masked_answers.first_turns(given)
    problems = [{"id": str(number), "prompt": text, "answer": ""} for number, text in enumerate(asked)]
    reference = [with_eos(spec) for spec in THRESHOLD]
    specs = settings_of(given)
    rows = decode(given, model, "answers", problems, specs, max_new_tokens=given.max_new_tokens)
    parent = pardec.load(given.parent, device="cpu", dtype="float32")
    known = given.run / "likelihood.jsonl"
    qualities = {
        "likelihood": likelihood(parent, model, asked, known),
        "agreement": agreement(model, rows[specs[0]]),
        "variety": variety(model),
    }
    about = f"{len(asked)} held-out instructions, at most {given.max_new_tokens} tokens."
    return {"text-answers": section(given, judged(rows, qualities, reference), specs, about)}


def copies(
    given: argparse.Namespace, model: pardec.Model, part: str, fields: Callable[[str], Row], specs: Sequence[str],
    **more: Any,
) -> dict[str, str]:  # fmt: skip
    """A part on sentences to repeat, judged by the sequential decoding of the same canvas."""
    sentences = masked_answers.copies(min(60, given.count))
    problems = [
        {"id": str(number), "prompt": text, **fields(answer)} for number, (text, answer) in enumerate(sentences)
    ]
    rows = decode(given, model, part, problems, specs, **more)
    qualities: dict[str, Quality] = {
        "agreement": agreement(model, rows[specs[0]]),
        "right": lambda row: float(row["score"]),
    }
    reference = [spec for spec in specs if spec.startswith("threshold")]
    about = f"{len(problems)} sentences to repeat with one word changed."
    return {f"text-{part}": section(given, judged(rows, qualities, reference), specs, about)}


def run_template(given: argparse.Namespace, model: pardec.Model) -> dict[str, str]:
    start = len(model.tokenizer(OPENING, add_special_tokens=False)["input_ids"])
    mask = model.language_model.decoding_config.mask_id
    gap = str(model.tokenizer.convert_ids_to_tokens(mask)) * ANSWER
    prophet = f"fixed:steps={ANSWER}+prophet:start={start},length={ANSWER}"
    specs = [with_eos(spec) for spec in ("sequential", *THRESHOLD, prophet, prophet + LOWER)]
    return copies(
        given, model, "template", lambda answer: {"answer": f"{OPENING} {answer}", "template": OPENING + gap}, specs
    )


def run_filler(given: argparse.Namespace, model: pardec.Model) -> dict[str, str]:
    new = 2 * given.max_new_tokens
    prophet = f"fixed:steps={new}+prophet"
    specs = ["sequential", *THRESHOLD, prophet, f"{prophet}:{LOWER[1:]}", f"{prophet}:gap=mean{LOWER}"]
    return copies(given, model, "filler", lambda answer: {"answer": answer}, specs, max_new_tokens=new)


def run_seconds(given: argparse.Namespace, model: pardec.Model) -> dict[str, str]:
    asked = sorted(masked_answers.first_turns(given), key=len)
    specs = settings_of(given)
    given.run.mkdir(parents=True, exist_ok=True)
    file = given.run / "seconds.jsonl"
    known = {}
    if file.is_file():
        known = {(spec, text): cost for spec, text, *cost in map(json.loads, file.read_text("utf-8").splitlines())}
    prompts = [asked[at] for at in sorted({round(at) for at in np.linspace(0, len(asked) - 1, given.timed)})]
    left = [(spec, text) for at, text in enumerate(prompts) for spec in specs[at:] + specs[:at]]
    left = [turn for turn in left if turn not in known]
    with limited(given.minutes):
        for spec in specs if left else ():  # a first decode, untimed: it includes one-time setup
            masked_answers.decoded(model, spec, [chat_ids(model, "Hello")], 4)
        for spec, text in left:
            began = time.process_time()
            ((_, forwards),) = masked_answers.decoded(model, spec, [chat_ids(model, text)], given.max_new_tokens)
            known[spec, text] = [time.process_time() - began, forwards]
            with file.open("a", encoding="utf-8") as opened:
                opened.write(json.dumps([spec, text, *known[spec, text]]) + "\n")
    lines = [
        ["sampler", "prompts", "seconds", "of sequential's", "forwards of sequential's", "milliseconds per forward"]
    ]
    for spec in specs:
        both = [text for text in prompts if (spec, text) in known and (specs[0], text) in known]
        if len(both) < LEAST:
            continue
        costs = np.array([[*known[spec, text], *known[specs[0], text]] for text in both])  # of both: seconds, forwards
        seconds, forwards, _, steps = costs.sum(0)
        cells = [str(len(both)), f"{seconds / len(both):.2f}", fewer_forwards.ratio(costs[:, 0], costs[:, 2])]
        lines.append([f"`{curves.bare(spec)}`", *cells, f"{forwards / steps:.2f}", f"{1000 * seconds / forwards:.1f}"])
    about = f"Seconds of the process per answer of at most {given.max_new_tokens} tokens, and over those of sequential"
    parts = [f"{about} decoding of the same prompts, with 95% intervals.", f"`{given.command}`", f"{setup(given)}."]
    return {"text-seconds": "\n\n".join([*parts, curves.table(lines).strip()])}


PARTS: Mapping[str, Part] = {
    "answers": run_answers,
    "template": run_template,
    "filler": run_filler,
    "seconds": run_seconds,
}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", type=Path, required=True, help="folder of the masked model")
    parser.add_argument("--parent", required=True, help="the autoregressive model that judges: a file, folder or name")
    parser.add_argument("--prompts", type=Path, required=True, help="lines of JSON with turns")
    parser.add_argument("--run", type=Path, required=True, help="folder of results so far")
    parser.add_argument("--count", type=int, default=200, help="number of prompts")
    parser.add_argument("--every", type=int, default=1, help="take every so many lines of --prompts")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--batch", type=int, default=1, help="rows decoded together")
    parser.add_argument("--quantize", help="quantization of the masked model")
    parser.add_argument("--activations", help="activations of the quantized model")
    parser.add_argument("--timed", type=int, default=12, help="prompts timed in the part `seconds`")
    parser.add_argument("--minutes", type=float, help="time limit of decoding in each part; the same command resumes")
    parser.add_argument("--only", nargs="+", default=list(PARTS), choices=PARTS)
    parser.add_argument("--out", type=Path, default=claims.FOLDER / "claims.md", help="the page")
    given = parser.parse_args(argv)
    asked = shlex.join(["python", "benchmarks/text_claims.py", *(argv or sys.argv[1:])])
    given.command = re.sub(r" --minutes[ =]\S+", "", asked)  # without it the command measures all of it
    torch.set_num_threads(1)
    packed = {"quantize": given.quantize, "activations": given.activations}
    model = pardec.load(given.model, device="cpu", dtype="float32", **packed)
    if not model.language_model.decoding_config.masked:
        parser.error("--model is a masked model")
    for name in given.only:
        claims.write(given.out, PARTS[name](given, model))


if __name__ == "__main__":
    main()
