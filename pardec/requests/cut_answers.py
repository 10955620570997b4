"""Answers that reached their limit of tokens before an end token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def is_cut(row: Mapping[str, Any], settings: Mapping[str, Any]) -> bool:
    """Whether the answer of a row was cut at `max_new_tokens`.

    Args:
        row: with its `tokens`, how many were `generated` before an end token, and `finish`.
        settings: the call's `max_new_tokens` and `stop_ids`; without end tokens, the length is as requested.
    """
    length = len(row["tokens"])
    ends = bool(settings.get("stop_ids"))  # images have none
    return ends and row["finish"] == "length" and length == row["generated"] == settings["max_new_tokens"]


def sentence(cut: int, rows: int, tokens: int | None) -> str:
    """How many answers were cut, and at which length, in words.

    >>> sentence(1, 1, 64), sentence(2, 3, None)
    ('the answer was cut at 64 tokens', '2 of 3 answers were cut at their longest length')
    """
    where = "their longest length" if tokens is None else f"{tokens} tokens"
    if rows == 1:
        return f"the answer was cut at {where}"
    return f"{cut} of {rows} answers {'was' if cut == 1 else 'were'} cut at {where}"
