"""Texts that a target writes: answers to prompts of a task or a file, or to users' turns that it writes itself.

A row is one JSON line: {"prompt": ids, "answer": ids}. Rows come in chunks that depend on (seed, number) alone, so that
an interrupted file continues after its last whole chunk.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

import pardec
from pardec.models.errors import SpecError
from pardec.models.model import LanguageModel
from pardec.tasks import Generator, task

from ..io.text_files import numbered_lines, read_utf8
from .resumable import write_json

# How user messages begin, with shares; the target writes the rest, or all of it where the beginning is empty.
OPENINGS = (
    ("", 0.32),
    ("Translate to English: ", 0.04),
    ("Translate German to English: ", 0.06),
    ("Summarize: ", 0.08),
    ("Who ", 0.02),
    ("who ", 0.04),
    ("when did ", 0.04),
    ("where ", 0.03),
    ("what is the ", 0.05),
    ("how many ", 0.02),
    ("What ", 0.04),
    ("Write ", 0.05),
    ("Write a news article about ", 0.05),
    ("How many ", 0.03),
    ("A farmer has ", 0.03),
    ("If ", 0.03),
    ("Pretend ", 0.02),
    ("Evaluate the following ", 0.02),
    ("Explain ", 0.03),
)
# Questions about a passage, which is one of the target's own answers.
ABOUT = (
    "Summarize: {0}",
    "{0}\n\nWhat is the main point of this text?",
    "{0}\n\n{1}\n\nAnswer a question about the texts above: what do they say?",
    "Rewrite the following text in simpler words: {0}",
    "Extract the names and numbers from this text: {0}",
)
_PROMPT = 'a line is {"prompt": "text"}'


@dataclass(frozen=True)
class Writing:
    """The settings for writing the texts of one file."""

    out: Path
    rows: int
    seed: int = 0
    batch: int = 96
    prompt_tokens: int = 128  # length of a prompt that the target writes
    answer_tokens: int = 192
    warm: float = 0.3  # share of the chunks that are sampled; the others are greedy
    temperature: float = 0.8
    about: float = 0.25  # share of the prompts that ask about a passage
    long: float = 0.0  # share that ask about several, of some 300 to 800 tokens
    tasks: Sequence[str] = ()
    prompts: Path | None = None


def write(model: pardec.Model, how: Writing) -> int:
    """Writes the missing rows of the file; returns all rows.

    Raises SpecError for a file that was begun with other settings.
    """
    how.out.parent.mkdir(parents=True, exist_ok=True)
    _check_settings(how)
    count = _whole(how.out, how.batch)
    number = count // how.batch
    while count < how.rows:
        rng = random.Random(f"{how.seed}/{number}")
        prompts = _prompts(model, how, rng, number)
        sampled = rng.random() < how.warm
        result = model.generate(
            input_ids=[torch.tensor(ids) for ids in prompts],
            max_new_tokens=how.answer_tokens,
            sampler="sequential",
            temperature=how.temperature if sampled else 0.0,
            seed=how.seed * 100_003 + number,
        )
        rows = [{"prompt": ids, "answer": result.tokens[at]} for at, ids in enumerate(prompts)]
        with how.out.open("a") as file:
            file.write("".join(json.dumps(row) + "\n" for row in rows))
        count += len(rows)
        number += 1
        tokens = sum(len(row["answer"]) for row in rows)
        print(f"{how.out.name}: {count} rows, {tokens} tokens in the last {len(rows)}", flush=True)
    return count


def _check_settings(how: Writing) -> None:
    """Stores the settings next to the file. Raises SpecError if it was begun with others.

    A file that has all rows may be read again without naming its prompts, and with another seed.
    """
    asked = {name: str(value) for name, value in asdict(how).items() if name not in ("out", "rows", "tasks")}
    asked["tasks"] = ",".join(how.tasks)
    path = how.out.with_suffix(".settings.json")
    if not (path.exists() and how.out.exists()):
        write_json(path, asked)
        return
    begun = json.loads(path.read_text(encoding="utf-8"))
    complete = sum(1 for _ in rows([how.out])) >= how.rows
    for name, value in asked.items():
        named = name in ("tasks", "prompts") and value not in ("", "None")
        if begun[name] != value and (named or not complete):
            raise SpecError(
                f"{how.out} was begun with {name} {begun[name] or None}, and this call asks for {value or None}",
                hint="give the settings that it was begun with, or another folder",
            )


def _read_prompts(file: Path) -> list[str]:
    """The prompts of a file with one JSON object per line."""
    texts = []
    for number, line in numbered_lines(read_utf8(file, "prompts", hint=_PROMPT)):
        try:
            texts.append(json.loads(line)["prompt"])
        except (ValueError, LookupError, TypeError):
            texts.append(None)
        if not isinstance(texts[-1], str):
            raise SpecError(f"{file}, line {number} is no prompt", hint=_PROMPT)
    if not texts:
        raise SpecError(f"{file} has no prompt", hint=_PROMPT)
    return texts


def _whole(path: Path, batch: int) -> int:
    """Cuts the file to its complete chunks; returns their rows."""
    if not path.exists():
        return 0
    lines = path.read_text().splitlines(keepends=True)
    keep = len([line for line in lines if line.endswith("\n")]) // batch * batch
    if keep != len(lines):
        path.write_text("".join(lines[:keep]))
    return keep


def _prompts(model: pardec.Model, how: Writing, rng: random.Random, number: int) -> list[list[int]]:
    if how.tasks:
        tasks = [_generator(name) for name in how.tasks]
        problems = [tasks[rng.randrange(len(tasks))].sample(rng, "train") for _ in range(how.batch)]
        return [model.tokenizer(problem.prompt)["input_ids"] for problem in problems]
    if how.prompts is not None:
        texts = _read_prompts(how.prompts)
        random.Random(how.seed).shuffle(texts)
        return [chat_ids(model, texts[(number * how.batch + at) % len(texts)]) for at in range(how.batch)]
    return _own_prompts(model, how, rng, number)


def _generator(name: str) -> Generator:
    generator = task(name)
    if not isinstance(generator, Generator):
        raise SpecError(f"task {name} has no training problems", hint="prompts=FILE takes the prompts of a file")
    return generator


def network_of(model: pardec.Model) -> LanguageModel:
    """The model's network. Raises SpecError for a model of vectors and for a masked model."""
    if model.family != "ar":
        does = f"draws {model.driver.drawn}" if model.driver.drawn else "fills masks"
        raise SpecError(f"{model.name} {does} and can have no drafter", hint="name an autoregressive target")
    return model.language_model


def chat_ids(model: pardec.Model, text: str) -> list[int]:
    """A user's message in the target's chat template, or the plain text if there is none."""
    if not model.tokenizer.chat_template:
        return list(model.tokenizer(text)["input_ids"])
    message = [{"role": "user", "content": text}]
    return list(model.tokenizer.apply_chat_template(message, add_generation_prompt=True, return_dict=True)["input_ids"])


def _own_prompts(model: pardec.Model, how: Writing, rng: random.Random, number: int) -> list[list[int]]:
    """Users' turns written by the target, as in Magpie (arXiv:2406.08464)."""
    mark = "\N{SNOWMAN}"
    message = [{"role": "user", "content": mark}]
    before, _ = model.tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=False).split(mark)
    openings = rng.choices([name for name, _ in OPENINGS], weights=[share for _, share in OPENINGS], k=how.batch)
    starts = [model.tokenizer(before + text, add_special_tokens=False)["input_ids"] for text in openings]
    result = model.generate(
        input_ids=[torch.tensor(ids) for ids in starts],
        max_new_tokens=how.prompt_tokens,
        sampler="sequential",
        temperature=1.0,
        top_k=200,
        seed=how.seed * 100_003 + number,
    )
    decode = model.tokenizer.decode
    new = [decode(ids, skip_special_tokens=True) for ids in result.tokens]
    texts = [(opening + text).strip() or "Hello" for opening, text in zip(openings, new, strict=True)]
    passages = [decode(answer, skip_special_tokens=True) for _, answer in rows([how.out]) if len(answer) > 80][-500:]
    if len(passages) > 1:
        about = [rng.choice(ABOUT).format(*rng.sample(passages, 2)) for _ in texts]
        texts = [other if rng.random() < how.about else text for text, other in zip(texts, about, strict=True)]
        if how.long:
            texts = [_long(rng, passages, text) if rng.random() < how.long else text for text in texts]
    return [chat_ids(model, text) for text in texts]


def _long(rng: random.Random, passages: Sequence[str], question: str) -> str:
    """Prompts of several passages: to be summarised as one text, or with a question about them."""
    some = [passage.split() for passage in rng.sample(passages, min(8, len(passages)))]
    if rng.random() < 0.5:
        return "Summarize: " + " ".join(word for words in some for word in words)[: rng.randrange(1500, 3500)]
    parts = [" ".join(words[: rng.randrange(60, 130)]) for words in some[: rng.randrange(3, 6)]]
    return "\n".join([*parts, question])


def rows(paths: Sequence[Path]) -> Iterator[tuple[list[int], list[int]]]:
    """The prompt and answer of every complete line."""
    for path in (path for path in paths if path.exists()):
        for line in path.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                row = json.loads(line)
                yield row["prompt"], row["answer"]
