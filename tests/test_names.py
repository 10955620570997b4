"""Identifiers say what a thing is in the field's own words: private ones do not come back.

`python tests/test_names.py` prints the list of what is left, which may only shrink.
"""

from __future__ import annotations

import io
import re
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PRIVATE = {
    "law": "distribution or probabilities",
    "laws": "distributions",
    "sight": "attention pattern",
    "voice": "draft model",
    "hear": "forward",
    "heard": "fed",
    "chances": "uniforms",
    "asking": "forward, query",
    "painting": "image state",
    "painted": "sampled",
    "unsaid": "uncond",
    "said": "cond, message, parameters",
    "told": "event, message, description",
    "drawn": "sampled or rendered",
    "dressed": "conditioned",
    "joining": "batching",
    "seat": "slot",
    "seats": "slots",
    "standing": "static",
    "pieced": "chunked",
    "sharing": "tensor parallel",
    "dealing": "dispatch",
    "appearance": "code features",
    "picture": "image",
    "pictures": "images",
    "looks": "tests, confirmations",
    "facts": "definitions, environment",
    "hosted": "to_host",
    "unkept": "uncached",
}
# What is left of them: remove a line when its file is clean.
LEFT: dict[str, set[str]] = {
    "pardec/cli/drawing.py": {"pictures"},  # and below: public parameters and names of fields
    "pardec/cli/tune.py": {"told"},
    "pardec/comparison/tuning/__init__.py": {"told"},
    "pardec/images/classes.py": {"pictures"},
    "pardec/images/distance.py": {"pictures"},
    "pardec/images/pngs.py": {"picture", "pictures"},
    "pardec/images/reading.py": {"pictures"},
    "pardec/images/scoring.py": {"pictures"},
    "pardec/views/html.py": {"facts"},
}


def words(identifier: str) -> set[str]:
    """The words of a snake_case or CamelCase identifier."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", identifier)}


def found() -> dict[str, set[str]]:
    """The private words of every file's identifiers."""
    left: dict[str, set[str]] = {}
    for file in sorted(path for floor in ("models", "samplers", "pardec") for path in (ROOT / floor).rglob("*.py")):
        tokens = tokenize.generate_tokens(io.StringIO(file.read_text()).readline)
        names = {token.string for token in tokens if token.type == tokenize.NAME}
        if held := {word for name in names for word in words(name)} & set(PRIVATE):
            left[str(file.relative_to(ROOT))] = held
    return left


def test_no_identifier_bears_a_private_word() -> None:
    new = {file: words - LEFT.get(file, set()) for file, words in found().items()}
    assert {file: {word: PRIVATE[word] for word in words} for file, words in new.items() if words} == {}


def test_the_list_of_what_is_left_only_shrinks() -> None:
    now = found()
    assert {file: words - now.get(file, set()) for file, words in LEFT.items() if words - now.get(file, set())} == {}


if __name__ == "__main__":
    print("LEFT: dict[str, set[str]] = {")
    for file, words_ in found().items():
        print(f'    "{file}": {{{", ".join(repr(word) for word in sorted(words_))}}},'.replace("'", '"'))
    print("}")
