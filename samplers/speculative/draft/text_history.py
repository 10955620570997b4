"""Indices over each row's text for drafters that copy from it; they grow with committed tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

import numpy as np

from ...batching import RowState
from ...host_transfer import upload
from ..contracts import Draft
from ..sequences import Sequences

Row = TypeVar("Row")


class PerRow(RowState, Generic[Row]):
    """One state object for each live row."""

    per_row = ("rows",)

    def __init__(self, rows: Iterable[Row]) -> None:
        self.rows = list(rows)


class NGramIndex:
    """The start of each n-gram, of some sizes, in a growing text; those at the text's end are not included."""

    def __init__(self, sizes: Iterable[int], *, first: bool = False) -> None:
        self.sizes = tuple(sizes)
        self._longest_first = sorted(self.sizes, reverse=True)
        self.first = first  # True: keep the first of several occurrences; False: the last
        self.text: list[int] = []
        self.starts: dict[tuple[int, ...], int] = {}

    def extend(self, tokens: list[int]) -> None:
        """Appends `tokens` and indexes all n-grams that now have a successor."""
        text, known, starts = self.text, len(self.text), self.starts
        text += tokens
        for size in self.sizes:
            for start in range(max(known - size, 0), len(text) - size):
                run = tuple(text[start : start + size])
                if not self.first or run not in starts:
                    starts[run] = start

    def match(self) -> int | None:
        """The index after an earlier occurrence of the longest n-gram that ends the text; None if there is none."""
        text, starts = self.text, self.starts
        for size in self._longest_first:
            if size <= len(text) and (start := starts.get(tuple(text[-size:]))) is not None:
                return start + size
        return None

    def longest(self) -> int:
        """Tokens of the longest n-gram that ends the text and occurs before; 0 if there is none."""
        for size in self._longest_first:
            if size <= len(self.text) and tuple(self.text[-size:]) in self.starts:
                return size
        return 0


class GridIndex:
    """The index of an image token for each pair of neighbours, to the left and above, in a growing image."""

    def __init__(self, prompt: int, columns: int, *, first: bool = False) -> None:
        """Image tokens begin after `prompt` tokens, `columns` in a row; of equal pairs keep the `first` or last."""
        self.prompt, self.columns, self.first = prompt, columns, first
        self.text: list[int] = []
        self.starts: dict[tuple[int, int], int] = {}

    def extend(self, tokens: list[int]) -> None:
        """Appends `tokens`."""
        for token in tokens:
            if len(self.text) >= self.prompt and not (self.first and self._around() in self.starts):
                self.starts[self._around()] = len(self.text)
            self.text.append(token)

    def match(self) -> int | None:
        """The index of an earlier token with the neighbours of the next one; None if there is none."""
        return self.starts.get(self._around())

    def _around(self) -> tuple[int, int]:
        """The neighbours of the next token; -1 outside of the image."""
        raster = len(self.text) - self.prompt
        left = self.text[-1] if raster % self.columns else -1
        return left, self.text[-self.columns] if raster >= self.columns else -1


class SuffixIndex:
    """For each index of a growing text, the length of the match between the tokens before it and the text's end."""

    def __init__(self) -> None:
        self.length = 0
        self.text = np.empty(64, dtype=np.int64)
        self.common = np.zeros(64, dtype=np.int64)  # length of the match before index 0, 1, ...

    def extend(self, tokens: list[int]) -> None:
        """Appends `tokens`."""
        for token in tokens:
            if self.length + 1 == len(self.text):
                self.text = np.concatenate((self.text, np.empty_like(self.text)))
                self.common = np.concatenate((self.common, np.zeros_like(self.common)))
            end = self.length
            self.common[1 : end + 1] = np.where(self.text[:end] == token, self.common[:end] + 1, 0)
            self.text[end], self.length = token, end + 1

    def match(self) -> int | None:
        """The index after the longest earlier match of the text's end, the last of equally long ones; or None."""
        common = self.common[: self.length][::-1]
        if not len(common) or not common.max():
            return None
        return self.length - 1 - int(common.argmax())


def repeated(text: np.ndarray, start: int, count: int) -> np.ndarray:
    """`count` tokens of `text` from `start` on; after the text's end they repeat periodically."""
    return text[start : start + count] if start + count <= len(text) else np.resize(text[start:], count)


def chain(text: Sequences, most: int, remaining: np.ndarray, guess: Callable[[int, int], np.ndarray]) -> Draft:
    """A draft of one chain per row from guess(row, budget), which returns up to `budget` tokens."""
    drafted = np.zeros((len(text), most), dtype=np.int64)
    counts = np.zeros_like(text.length)
    for at in range(len(text)):
        budget = min(most, int(remaining[at]))
        tokens = guess(at, budget)[:budget] if budget > 0 else drafted[at, :0]
        drafted[at, : len(tokens)], counts[at] = tokens, len(tokens)
    return Draft.chain(text, upload(drafted, text.device), counts)
