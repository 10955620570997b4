"""Rows of the story model: stories, and instructions about them whose answers follow from the story.

Files hold the rows of `pardec generate -o FILE.jsonl`. A story goes up to its last whole sentence. One request of
`HELD_OUT` is held out, with its stories and every instruction about them.
"""

from __future__ import annotations

import json
import random
import re
import zlib
from collections.abc import Iterator
from pathlib import Path

HELD_OUT = 25
LONGEST = 450  # characters of an answer, cut at the end of a sentence
_SENTENCE = re.compile(r'[^.!?]+[.!?]+["\']?\s*')
_ABOUT = re.compile(r"It is a (\w+) story about (.*)\.$")
Row = tuple[str, str]  # prompt and answer


def sentences(text: str, longest: int = LONGEST) -> list[str]:
    """The whole sentences of a text, in order, as many as fit.

    >>> sentences('A cat sat. "Hello!" A dog')
    ['A cat sat. ', '"Hello!" ']
    """
    found, length = [], 0
    for sentence in _SENTENCE.findall(text):
        length += len(sentence)
        if length > longest:
            break
        found.append(sentence)
    return found


def read(files: list[Path]) -> Iterator[Row]:
    """Prompt and answer of each row of plain ASCII text; a request for a story is shortened."""
    for file in files:
        for line in file.read_text(encoding="utf-8").split("\n")[:-1]:  # the last line may not be whole yet
            row = json.loads(line)
            prompt, text = row["prompt"], " ".join(row["text"].split())
            if not isinstance(prompt, str):
                prompt = prompt[-1]["content"]
            about = _ABOUT.search(prompt)
            if about:
                prompt = f"Write a {about[1]} story about {about[2]}."
            answer = "".join(sentences(text)).strip()
            if answer and len(prompt) < LONGEST and (prompt + answer).isascii():
                yield prompt, answer


def is_held_out(row: Row) -> bool:
    """Whether the row is held out of training, by a checksum of its prompt: one prompt may have several answers."""
    return zlib.crc32(row[0].encode()) % HELD_OUT == 0


def about(rng: random.Random, row: Row) -> Row:
    """An instruction about the row's answer; the row itself where the answer is a single sentence."""
    parts = sentences(row[1])
    story = "".join(parts).strip()
    if len(parts) < 2:
        return row
    kind = rng.randrange(4)
    if kind == 0:
        cut = rng.randrange(1, len(parts))
        return f"Go on with this text: {''.join(parts[:cut]).strip()}", "".join(parts[cut:]).strip()
    if kind == 1:
        return f"What is the last sentence of this text? {story}", parts[-1].strip()
    if kind == 2:
        return f"Repeat this sentence: {(sentence := rng.choice(parts).strip())}", sentence
    sentence, other = (part.strip() for part in rng.sample(parts, 2))
    words, others = re.findall(r"\w+", sentence), re.findall(r"\w+", other)
    if not words or not others:
        return row
    old, new = rng.choice(words), rng.choice(others)
    changed = re.sub(rf"\b{old}\b", new, sentence)
    return f'Repeat this sentence, but write "{new}" in place of "{old}": {sentence}', changed
