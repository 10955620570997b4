"""Random specs with random arguments, each decoded alone, in a ragged batch, served and streamed.

A case is refused before its first forward, or all of its rows are decoded, keep their constraints, and are the same in
each of the four ways. `case(seed, number)` reproduces one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np

import pardec
from pardec.samplers.cards import STAGES_OF, Card, cards
from pardec.samplers.rng import row_seed
from tests.samplers.toys import EVERY_FAMILY, prompts, toy

TEXTS = (
    "Tom has 8 cups. He loses 3. How many cups does Tom have now?",
    "Reverse the list: 4 7 2 9 1.",
    "Hugo has 55 apples. Olga removes 9. Ravi buys 3. How many remain? He gives 4 to Tom. How many apples?",
    "Tom",
    "Ann has 2. Ann has 2. Ann has 2.",
)
TEXT_MODELS = ("tiny-dream", "tiny-llada", "tiny-nemotron", "tiny-llama")
IMAGE_MODELS = ("tiny-llamagen", "tiny-mar", "tiny-var")
TOYS = tuple(f"toy {family}" for family in EVERY_FAMILY)
MODELS = (*TEXT_MODELS * 4, *TOYS * 2, *("tiny-llamagen", "tiny-mar", "tiny-var"))
SCHEMAS: tuple[dict[str, Any], ...] = (
    {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False},
    {"type": "object", "properties": {"b": {"enum": ["x", "yes"]}}, "required": ["b"], "additionalProperties": False},
    {"enum": ["red", "blue", 3]},
    {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 2},
)
NEEDS: dict[str, dict[str, str]] = {  # parameters without which a method works with no small model
    "learned": {"filter": "tiny-dream", "force": "true"},
    "levenshtein": {"delete": "3", "split": "4"},
    **{name: {"name": "tiny-llama-draft"} for name in ("model", "pearl", "sorted", "triforce")},
    **{
        name: {"name": f"tiny-llama-{name}"}
        for name in ("dflash", "eagle", "hydra", "idlm", "kangaroo", "medusa", "mtp", "prompts")
    },
    "diffusion": {"name": "tiny-llada"},
}
FLOATS = ("0.0", "0.1", "0.3", "0.5", "0.7", "0.9", "1.0", "1.5", "4.0")
TOLERANCE = 2e-3  # of log-probabilities: batches of other shapes round otherwise


@dataclass
class Case:
    """One request."""

    model: str
    sampler: str
    prompts: list[Any]  # texts, lists of ids, labels
    arguments: dict[str, Any]
    lengths: list[int] = field(default_factory=list)  # of each row, where they differ when served

    def __str__(self) -> str:
        told = {**self.arguments, "prompts": len(self.prompts), "lengths": self.lengths}
        return f"{self.model} {self.sampler!r} {told}"


@cache
def model_of(name: str) -> pardec.Model:
    """A model by the name that `Case.model` has."""
    kind, _, family = name.partition(" ")
    return pardec.Model(toy(family, sharp=1.2)) if kind == "toy" else pardec.load(name, device="cpu")


def case(seed: int, number: int) -> Case:
    """Case `number` of the run `seed`."""
    rng = Random(f"{seed} {number}")
    name = rng.choice(MODELS)
    model = model_of(name)
    spec = sampler(rng, model)
    count = rng.randint(2, 4)
    arguments: dict[str, Any] = {"seed": rng.randrange(1000)}
    if rng.random() < 0.5 or name in ("tiny-mar", "tiny-var"):
        arguments["temperature"] = rng.choice((0.7, 1.0, 1.3))
    if name in IMAGE_MODELS:
        return _image(rng, name, spec, count, arguments)
    given: list[Any] = rng.sample(TEXTS, count)
    if name in TOYS:
        given = prompts([rng.randint(1, 9) for _ in range(count)], seed=rng.randrange(1000))
    new = rng.randint(2, 24)
    arguments["max_new_tokens"] = new
    lengths = [rng.randint(1, new) for _ in range(count)] if rng.random() < 0.5 else []
    if "temperature" in arguments:
        arguments |= _filters(rng)
    if rng.random() < 0.6 and model.family == "masked":
        arguments["block_length"] = rng.randint(1, new)
        if rng.random() < 0.3:
            arguments["block_align"] = "absolute"
    if rng.random() < 0.15 and model.family == "masked":
        arguments["cfg"] = 1.5
    if rng.random() < 0.5:
        arguments["stop_ids"] = []
    elif rng.random() < 0.5:
        arguments["min_new_tokens"] = rng.randint(1, new)
    if rng.random() < 0.15:
        arguments["repetition_penalty"] = 1.3
    if rng.random() < 0.3:
        arguments["logprobs"] = rng.choice((0, 2))
    drawn = rng.random()
    if drawn < 0.25 and name in TEXT_MODELS:
        arguments |= {"response_format": rng.choice(SCHEMAS), "max_new_tokens": max(new, 16)}
        arguments.pop("min_new_tokens", None)
        arguments.pop("stop_ids", None)
        lengths = []
        if "block_length" in arguments:
            arguments["block_length"] = rng.randint(1, 16)
    elif drawn < 0.45:
        vocab = model.language_model.vocab_size
        arguments["allowed"] = {
            index: sorted(rng.sample(range(4, vocab - 4), rng.randint(1, 4)))
            for index in rng.sample(range(min(lengths, default=new)), rng.randint(1, min(lengths, default=new)))
        }
        arguments["stop_ids"] = []
        arguments.pop("min_new_tokens", None)
    return Case(name, spec, given, arguments, lengths)


def _image(rng: Random, name: str, spec: str, count: int, arguments: dict[str, Any]) -> Case:
    if name == "tiny-llamagen":
        given: list[Any] = rng.sample(("a red circle", "a blue square", "two green triangles", "a small cross"), count)
        arguments |= _filters(rng) if "temperature" in arguments else {}
    else:
        given = [rng.randrange(4) for _ in range(2)]
    if rng.random() < 0.3:
        arguments["cfg"] = 1.5
    return Case(name, spec, given, arguments)


def _filters(rng: Random) -> dict[str, Any]:
    """Filters of a distribution."""
    drawn = {"top_k": rng.randint(1, 12), "top_p": rng.choice((0.5, 0.9)), "min_p": rng.choice((0.05, 0.3))}
    return {name: value for name, value in drawn.items() if rng.random() < 0.25}


def sampler(rng: Random, model: pardec.Model) -> str:
    """A spec that `model` takes."""
    for _ in range(200):
        spec = _spec(rng, model.family)
        try:
            given: dict[str, Any] = {"input_ids": [[5, 6, 7]], "max_new_tokens": 8}
            if model.imaging is not None:
                given = {"prompt": "a red circle"} if model.name == "tiny-llamagen" else {"label": 1}
            model.prepare(sampler=spec, **given)
        except pardec.PardecError:
            continue
        return spec
    raise AssertionError(f"{model.name} takes none of 200 specs")


def _spec(rng: Random, family: str) -> str:
    """A spec of one to five methods, which may be incompatible."""
    known = [card for card in cards() if card.family == family]
    drawn: list[Card] = []
    for stage in STAGES_OF[family]:  # type: ignore[index]
        own = [card for card in known if card.stage == stage]
        chance = {"select": 1.0, "draft": 1.0, "accept": 0.6, "vectors": 1.0, "maps": 1.0, "cache": 0.5}.get(
            stage, 0.22
        )
        if own and rng.random() < chance:
            drawn.append(rng.choice(own))
    parts = [_part(rng, card) for card in drawn if card.stage != "cache"]
    caches = [f"@{_part(rng, card)}" for card in drawn if card.stage == "cache"]
    return "+".join(parts) + "".join(caches)


def _part(rng: Random, card: Card) -> str:
    values = dict(NEEDS.get(card.name, {}))
    for parameter in card.parameters:
        name, kind = parameter["name"], parameter["type"]
        if name in values or rng.random() > 0.25:
            continue
        if "bool" in kind:
            values[name] = rng.choice(("true", "false"))
        elif "int" in kind:
            values[name] = str(rng.randint(0, 8))
        elif "float" in kind:
            values[name] = rng.choice(FLOATS)
        elif name in ("mode", "of", "order"):
            values[name] = rng.choice(("raw", "filtered", "exact", "reference", "published", "random", "confidence"))
    return card.name + (":" + ",".join(f"{name}={value}" for name, value in values.items()) if values else "")


# --- one case in four ways ---


@dataclass
class Row:
    """The outcome of one row."""

    tokens: list[int]
    text: str | None
    finish: str
    logprobs: np.ndarray | None
    vectors: np.ndarray | None = None


@dataclass
class Report:
    """The outcome of a case: why it was refused, or its faults."""

    refused: str | None = None
    faults: list[str] = field(default_factory=list)


def check(one: Case) -> Report:
    """Decodes a case in each way."""
    model, report = model_of(one.model), Report()
    arguments = {**one.arguments, "sampler": one.sampler}
    try:
        call = model.prepare(**_given(one, one.prompts), **arguments)
    except pardec.PardecError as error:
        report.refused = f"{type(error).__name__}: {error}"
        return report
    ways: dict[str, Callable[[], list[Row]]] = {
        "alone": lambda: [row for at in range(len(one.prompts)) for row in _alone(model, one, at, arguments)],
        "in a batch": lambda: _rows(model.generate(**_given(one, one.prompts), **arguments)),
        "streamed": lambda: _streamed(model, one, arguments),
        "served": lambda: _served(model, one, arguments, []),
    }
    try:
        next(iter(model.run(call)))
    except pardec.SpecError as error:
        report.refused = f"at its start: {error}"
        return report
    except Exception as error:
        report.faults.append(f"at its start: {type(error).__name__}: {error}")
        return report
    got: dict[str, list[Row]] = {}
    for way, decode in ways.items():
        try:
            got[way] = decode()
        except Exception as error:
            report.faults.append(f"{way}: {type(error).__name__}: {error}")
    if one.lengths:
        try:
            got["served, of other lengths"] = _served(model, one, arguments, one.lengths)
            for at, row in enumerate(got["served, of other lengths"]):
                length = one.lengths[at]
                own = _alone(model, one, at, {**arguments, "max_new_tokens": length})
                report.faults += _compare(f"alone and served with {length} tokens", at, own[0], row)
        except pardec.SpecError as error:
            if "serve_batch" not in str(error) and "block" not in str(error) and "max_new_tokens" not in str(error):
                report.faults.append(f"served, of other lengths: {type(error).__name__}: {error}")
        except Exception as error:
            report.faults.append(f"served, of other lengths: {type(error).__name__}: {error}")
    for way in got:
        for at, row in enumerate(got[way]):
            report.faults += [f"{way}, row {at}: {fault}" for fault in _broken(model, one, row)]
    whole = {way: rows for way, rows in got.items() if "lengths" not in way}
    for (first, rows), (second, others) in pairwise(whole.items()):
        if len(rows) != len(others):
            report.faults.append(f"{first} {len(rows)} rows, {second} {len(others)}")
        for at, (row, other) in enumerate(zip(rows, others, strict=False)):
            report.faults += _compare(f"{first} and {second}", at, row, other)
    return report


def _given(one: Case, given: Sequence[Any]) -> dict[str, Any]:
    if isinstance(given[0], int):
        return {"label": list(given)}
    return {"input_ids": list(given)} if isinstance(given[0], list) else {"prompt": list(given)}


def _alone(model: pardec.Model, one: Case, at: int, arguments: dict[str, Any]) -> list[Row]:
    seed = [row_seed(arguments["seed"], at)]
    return _rows(model.generate(**_given(one, [one.prompts[at]]), **{**arguments, "seed": seed}))


def _rows(result: pardec.Result) -> list[Row]:
    rows = []
    for at, tokens in enumerate(result.tokens):
        logprobs = None if result.logprobs is None else np.asarray(result.logprobs[at].own)
        vectors = None if result.latents is None else np.asarray(result.latents[at])
        text = None if result.text is None else result.text[at]
        rows.append(Row(list(tokens), text, result.finish[at], logprobs, vectors))
    return rows


def _streamed(model: pardec.Model, one: Case, arguments: dict[str, Any]) -> list[Row]:
    texts = [""] * len(one.prompts)
    finished: dict[int, str] = {}
    last: Any = None
    call = model.prepare(**_given(one, one.prompts), **arguments)
    for event in model.run(call, text=True):
        if isinstance(event, pardec.Step) and event.text is not None:
            for row, text in zip(event.rows.tolist(), event.text, strict=True):
                texts[row] += text
        elif isinstance(event, pardec.RowFinished):
            finished[event.row] = event.reason
            texts[event.row] += event.text or ""
        last = event
    rows = _rows(model.result(call, last, 1.0))
    for at, row in enumerate(rows):
        row.finish = finished.get(at, row.finish)
        row.text = row.text if row.text is None else texts[at]
    return rows


def _served(model: pardec.Model, one: Case, arguments: dict[str, Any], lengths: list[int]) -> list[Row]:
    arguments = dict(arguments)
    items: Iterator[dict[str, Any]] = ({_field(given): given} for given in one.prompts)
    if lengths:
        items = ({**item, "max_new_tokens": length} for item, length in zip(items, lengths, strict=True))
    with model.serve_batch(items, batch_size=2, **arguments) as rows:
        got = {row.index: _rows(row.result)[0] for row in rows}
    return [got[at] for at in sorted(got)]


def _field(given: Any) -> str:
    return "label" if isinstance(given, int) else "input_ids" if isinstance(given, list) else "prompt"


def _compare(ways: str, at: int, one: Row, other: Row) -> list[str]:
    if one.vectors is not None and other.vectors is not None:
        gap = float(np.abs(one.vectors - other.vectors).max())
        largest = max(1.0, float(np.abs(other.vectors).max()))  # few transitions of a hot head leave values near 100
        return [] if gap < TOLERANCE * largest else [f"{ways}, row {at}: vectors differ by {gap:.2g}"]
    if one.tokens != other.tokens:
        return [f"{ways}, row {at}: {one.tokens} and {other.tokens}"]
    faults = []
    if one.text != other.text:
        faults.append(f"{ways}, row {at}: {one.text!r} and {other.text!r}")
    if one.finish != other.finish:
        faults.append(f"{ways}, row {at}: {one.finish} and {other.finish}")
    if one.logprobs is not None and other.logprobs is not None:
        a, b = one.logprobs, other.logprobs
        if a.shape != b.shape or not np.allclose(a, b, atol=TOLERANCE, equal_nan=True):
            faults.append(f"{ways}, row {at}: log-probabilities {a.tolist()} and {b.tolist()}")
    return faults


def _broken(model: pardec.Model, one: Case, row: Row) -> list[str]:
    """The constraints that a row breaks."""
    arguments, faults = one.arguments, []
    if (
        model.imaging is None
        and model.family == "masked"
        and model.language_model.decoding_config.mask_id in row.tokens
    ):
        faults.append("a mask token")
    for index, ids in arguments.get("allowed", {}).items():
        if index < len(row.tokens) and row.tokens[index] not in ids:
            faults.append(f"token {index} is {row.tokens[index]}, allowed {ids}")
    if "min_new_tokens" in arguments:
        ends = set(model.language_model.decoding_config.eos_ids) & set(row.tokens[: arguments["min_new_tokens"]])
        if ends:
            faults.append(f"end token before {arguments['min_new_tokens']}: {row.tokens}")
    if "response_format" in arguments:
        try:
            value = json.loads(row.text or "")
        except ValueError:
            return [*faults, f"no JSON: {row.text!r}"]
        if not _fits(value, arguments["response_format"]):
            faults.append(f"not of the schema: {row.text!r}")
    return faults


def _fits(value: Any, schema: dict[str, Any]) -> bool:
    """Whether a value is of one of `SCHEMAS`."""
    if "enum" in schema:
        return value in schema["enum"]
    if schema["type"] == "array":
        return isinstance(value, list) and 1 <= len(value) <= 2 and all(isinstance(item, bool) for item in value)
    own = schema["properties"]
    if not isinstance(value, dict) or set(value) != set(own):
        return False
    return all(type(value[name]) is int if "type" in own[name] else value[name] in own[name]["enum"] for name in own)
