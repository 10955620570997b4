"""Finds caption words for which a text encoder has no token, without loading it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from ..errors import ArgumentError, did_you_mean


def unknown(text: str, known: Mapping[str, int]) -> ArgumentError | None:
    """The error for the first word of `text` that is not in the vocabulary; None if all are."""
    word = next((word for word in re.findall(r"\w+", text.lower()) if word not in known), None)
    if word is None:
        return None
    return ArgumentError(
        f"the text encoder does not know the word {word!r} in {text!r}{did_you_mean(word, known)}",
        f"it reads {len(known)} words, such as {', '.join(sorted(known)[-6:])}",
    )


def check(texts: Iterable[str], folder: Path) -> None:
    """Refuses captions that the tokenizer.json of a text encoder's folder has no tokens for.

    Nothing is told of tokenizers of other kinds, nor of a file that cannot be read: that is told where it is loaded.
    Raises ArgumentError, which names the first such word.
    """
    file = folder / "tokenizer.json"
    if not file.is_file():
        return
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception:  # the library has no specific exception
        return
    for text in texts:
        try:
            tokenizer.encode(text)
        except Exception as error:
            wrong = unknown(text, tokenizer.get_vocab())
            if wrong is not None:
                raise wrong from error
