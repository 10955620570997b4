"""Continuations of the longest suffix of a text: in a store of texts, and in the text itself."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import numpy as np

from ._history import SuffixIndex
from ._tries import Node, best

_END = -1  # behind each text of a store


class Store:
    """Texts by their suffixes, sorted by the first tokens (a suffix array)."""

    def __init__(self, texts: Sequence[np.ndarray], most: int) -> None:
        """`most` tokens of a suffix are compared."""
        self.most = most
        ends = np.full(1, _END, dtype=np.int64)
        parts = [part for text in texts for part in (text, ends)]
        ids = np.concatenate([*parts, np.full(most, _END, dtype=np.int64)])
        windows = np.lib.stride_tricks.sliding_window_view(ids, most)[: len(ids) - most]
        self.ids = ids
        self.order = np.lexsort(windows.T[::-1]).tolist() if len(windows) else []

    def find(self, suffix: tuple[int, ...]) -> list[int]:
        """The indices behind each occurrence of `suffix`, of at most `most` tokens."""
        size = len(suffix)

        def key(start: int) -> tuple[int, ...]:
            return tuple(self.ids[start : start + size].tolist())

        first = bisect_left(self.order, suffix, key=key)
        last = bisect_right(self.order, suffix, lo=first, key=key)
        return sorted(start + size for start in self.order[first:last])

    def continuation(self, start: int, count: int) -> list[int]:
        """Up to `count` tokens from `start` on, within one text."""
        tokens: list[int] = self.ids[start : start + count].tolist()
        return tokens[: tokens.index(_END)] if _END in tokens else tokens


class Retrieval:
    """What followed the longest suffix of one row's text, in the row and in a store."""

    def __init__(self, store: Store | None, longest: int) -> None:
        self.store, self.longest = store, longest
        self.text = SuffixIndex()

    def grow(self, tokens: list[int]) -> None:
        """Appends `tokens` to the text."""
        self.text.grow(tokens)

    def continuations(self, count: int, most: int) -> list[list[int]]:
        """At most `most` continuations, of up to `count` tokens, of the longest suffix that has any; the row's first.

        Later occurrences in the row come before earlier ones.
        """
        text, common = self.text.text[: self.text.length], self.text.common[: self.text.length]
        own = min(int(common.max(initial=0)), self.longest)
        for size in range(min(self.longest, len(text)), 0, -1):
            starts = np.flatnonzero(common >= size)[::-1].tolist() if size <= own else []
            matches = [text[start : start + count].tolist() for start in starts]
            if self.store is not None:
                stored = self.store.find(tuple(text[-size:].tolist()))
                matches += [self.store.continuation(start, count) for start in stored]
            if matches := [tokens for tokens in matches if tokens]:  # a suffix may end the texts that have it
                return matches[:most]
        return []


def retrieved_tree(continuations: Sequence[Sequence[int]], most: int) -> list[Node]:
    """The `most` nodes of the tree of `continuations` that the most of them share, of equals those of earlier ones.

    >>> retrieved_tree([[5, 6], [5, 7], [4]], 3)
    [(5, 0, 1), (6, 1, 2), (7, 1, 2)]
    """
    counts: list[int] = []
    index: dict[Node, int] = {}  # in the order of first occurrence, which has parents first
    for continuation in continuations:
        parent = 0
        for depth, token in enumerate(continuation, 1):
            at = index.setdefault((token, parent, depth), len(counts))
            if at == len(counts):
                counts.append(0)
            counts[at] += 1
            parent = at + 1
    return best([(float(count), node) for count, node in zip(counts, index, strict=True)], most)
