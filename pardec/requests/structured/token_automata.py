"""Automata over tokens for the gaps of a masked answer: regular expressions, and strings of bounded length.

A value that is shorter than its gap is followed by end or pad tokens, which decoded text leaves out; in a string they
may stand anywhere.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from pardec.samplers.ops.token_automaton import TokenAutomaton

from .regular import Automaton, Expression
from .vocabulary import Vocabulary

_MOST_ENTRIES = 2**26  # states times tokens
_NEVER = frozenset(b'"\\') | set(range(0x20))  # bytes that a string has only escaped


def plain_lengths(vocabulary: Vocabulary) -> np.ndarray:
    """[V] int: the number of characters of each token that may stand anywhere in a string; 0 for others."""
    return _plain_lengths(vocabulary)


@lru_cache(maxsize=8)
def _plain_lengths(vocabulary: Vocabulary) -> np.ndarray:
    lengths = np.zeros(len(vocabulary), dtype=np.int64)
    for token, value in enumerate(vocabulary.tokens):
        if value and not _NEVER & set(value):
            try:
                lengths[token] = len(value.decode())
            except UnicodeDecodeError:
                continue  # a part of a character
    return lengths


@lru_cache(maxsize=64)
def text_automaton(
    least: int, most: int | None, length: int, vocabulary: Vocabulary, pads: tuple[int, ...]
) -> TokenAutomaton:
    """Strings of `least` to `most` characters: the state counts them."""
    lengths = plain_lengths(vocabulary)
    longest = int(lengths.max())
    last = min(most if most is not None else least, longest * length)
    kind = np.where(lengths > 0, lengths + 1, 0)
    kind[list(pads)] = 1
    state = np.arange(last + 1)[:, None]
    successors = state + np.arange(-1, longest + 1)
    successors = np.minimum(successors, last if most is None else last + 1)
    successors[:, 0] = last + 1
    if most is not None:
        successors[successors > last] = last + 1
    return TokenAutomaton(length, kind, successors, np.arange(last + 1) >= least)


@lru_cache(maxsize=64)
def value_automaton(
    expression: Expression, length: int, vocabulary: Vocabulary, pads: tuple[int, ...]
) -> TokenAutomaton:
    """An automaton for strings of an expression in at most `length` tokens, followed by padding."""
    automaton, table, tokens = Automaton(expression), np.zeros((0, 256), dtype=np.int64), _padded(vocabulary)
    most = _MOST_ENTRIES // len(vocabulary)
    rows: list[np.ndarray] = []  # per state: the next state after each token, -1 for none
    number = {0: 0}  # numbers of the states of `automaton`, in the order of discovery
    reached = [0]
    kind, kinds = np.zeros(len(vocabulary), dtype=np.int64), 1  # tokens of one kind lead to the same states
    level_end, depth = 1, 0
    for state in reached:
        if len(rows) == level_end:
            level_end, depth = len(reached), depth + 1
        row = np.full(len(vocabulary), -1)
        if depth < length:
            successors, table = _successors(automaton, state, tokens, table)
            for each in np.unique(successors[successors >= 0]).tolist():
                if each not in number:
                    number[each] = len(reached)
                    reached.append(each)
            if len(reached) > most:
                raise TooManyStates
            some = successors >= 0
            row[some] = [number[each] for each in successors[some].tolist()]
        rows.append(row.astype(np.int32))
    end = len(reached)
    accepting = np.array([*(automaton.accepts(state) for state in reached), True])
    rows.append(np.full(len(vocabulary), -1, dtype=np.int32))
    for at, row in enumerate(rows):
        row[list(pads)] = end if accepting[at] else -1
        row[row < 0] = end + 1
        kind = np.unique(kind * (end + 2) + row, return_inverse=True)[1].ravel()
    kinds = int(kind.max()) + 1
    first = np.zeros(kinds, dtype=np.int64)
    first[kind[::-1]] = np.arange(len(vocabulary))[::-1]
    columns = np.stack([row[first] for row in rows]).astype(np.int64)
    none = np.flatnonzero((columns == end + 1).all(0))  # the kind of no token: it comes first
    others = np.setdiff1d(np.arange(kinds), none)
    column = np.zeros(kinds, dtype=np.int64)
    column[others] = np.arange(1, len(others) + 1)
    dead = np.full((end + 1, 1), end + 1)
    return TokenAutomaton(length, column[kind], np.concatenate([dead, columns[:, others]], 1), accepting)


class TooManyStates(Exception):
    """An expression has more states than the limit."""


@lru_cache(maxsize=8)
def _padded(vocabulary: Vocabulary) -> tuple[np.ndarray, np.ndarray]:
    """The bytes of all tokens [V, longest], and the number of bytes of each [V]."""
    lengths = np.array([len(value) for value in vocabulary.tokens])
    padded = np.zeros((len(lengths), int(lengths.max(initial=1))), dtype=np.uint8)
    for token, value in enumerate(vocabulary.tokens):
        padded[token, : len(value)] = np.frombuffer(value, dtype=np.uint8)
    return padded, lengths


def _successors(
    automaton: Automaton, state: int, tokens: tuple[np.ndarray, np.ndarray], table: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The byte state after each token [V], -1 for a dead end; and the extended `table` [N, 256] of states."""
    padded, lengths = tokens
    states = np.where(lengths > 0, state, -1)
    for at in range(padded.shape[1]):
        live = np.flatnonzero((states >= 0) & (lengths > at))
        if not len(live):
            break
        for each in np.unique(states[live]).tolist():
            if each >= len(table):
                table = np.concatenate([table, np.full((max(each + 1, 2 * len(table)) - len(table), 256), -2)])
            if table[each, 0] == -2:
                table[each] = automaton.row(each)
        states[live] = table[states[live], padded[live, at]]
    return states, table
