"""A sentence about a person becomes a JSON record: `{"name": "Anna", "age": 34, "city": "Paris", "job": "nurse"}`.

The record holds the fields that the sentence gives, always in the order name, age, city, job. The values decide the
split; the sentence around them does not.
"""

from __future__ import annotations

import json
import random
from typing import Any

from .base import PEOPLE, Draw, Generator, Problem, words_of

CITIES = ("Paris", "Rome", "Cairo", "Lima", "Oslo", "Delhi", "Tokyo", "Berlin", "Madrid", "Lagos", "Quito", "Boston")
JOBS = (
    "nurse", "teacher", "baker", "farmer", "pilot", "doctor",
    "writer", "painter", "singer", "driver", "judge", "cook",
)  # fmt: skip
FIELDS = ("name", "age", "city", "job")

LEADS = ("Make a record:", "Write the record:", "Fill in the record:", "Record:")
SENTENCES = (
    "{name}, aged {age}, works as a {job} in {city}.",
    "{name} is a {age} year old {job} from {city}.",
    "The {job} {name} is {age} and lives in {city}.",
    "In {city} there is a {job} called {name} who is {age} years old.",
    "{city} is home to {name}, a {job} aged {age}.",
    "At {age}, {name} moved to {city} to work as a {job}.",
    "{name} works as a {job} and is {age} years old.",
    "The {job} called {name} is {age}.",
    "A {age} year old {job} is called {name}.",
    "{name} lives in {city} and is {age} years old.",
    "In {city} lives {name}, aged {age}.",
    "Aged {age}, {name} is at home in {city}.",
    "{name} is a {job} in {city}.",
    "{city} has a {job} called {name}.",
    "The {job} {name} lives in {city}.",
    "{name} is {age} years old.",
    "{name} lives in {city}.",
    "{name} works as a {job}.",
)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) != len(pairs):
        raise ValueError("a key occurs twice")
    return dict(pairs)


def first_record(text: str) -> Any:
    """The JSON value that starts at the first brace; None where none is well formed."""
    try:
        return json.JSONDecoder(object_pairs_hook=_once).raw_decode(text, text.index("{"))[0]
    except (ValueError, RecursionError):
        return None


class Records(Generator):
    name = "records"
    summary = "a sentence about a person becomes a JSON record of two to four fields"
    words = words_of(*PEOPLE, *CITIES, *JOBS, *LEADS, *SENTENCES)
    bare_words = frozenset((*PEOPLE, *CITIES, *JOBS, *FIELDS))

    def draw(self, rng: random.Random) -> Draw:
        sentence = rng.choice(SENTENCES)
        values: dict[str, str | int] = {
            "name": rng.choice(tuple(PEOPLE)),
            "age": rng.randint(10, 99),
            "city": rng.choice(CITIES),
            "job": rng.choice(JOBS),
        }
        record = {field: values[field] for field in FIELDS if f"{{{field}}}" in sentence}
        answer = json.dumps(record)
        return Draw(answer, f"{rng.choice(LEADS)} {sentence.format(**values)}", answer)

    def score(self, problem: Problem, text: str) -> float:
        """1.0 if the first `{...}` of text is JSON with the right fields and values, else 0.0."""
        record = first_record(text)
        if not isinstance(record, dict):
            return 0.0
        return float(json.dumps(record, sort_keys=True) == json.dumps(json.loads(problem.answer), sort_keys=True))
