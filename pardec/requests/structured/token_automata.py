"""Gaps of a masked answer as automata over tokens: regular expressions, and strings of bounded length.

A value that is shorter than its gap is followed by end or pad tokens, which decoded text leaves out; in a string they
may stand anywhere.
"""

from __future__ import annotations

from collections import defaultdict
from functools import lru_cache

import numpy as np

from pardec.samplers.ops.token_automaton import TokenAutomaton

from .regular import Automaton, Expression
from .vocabulary import Vocabulary

_NEVER = frozenset(b'"\\') | set(range(0x20))  # what a string has only as an escape


def plain_lengths(vocabulary: Vocabulary) -> np.ndarray:
    """[V] int: the characters of each token that may stand anywhere in a string, 0 of the others."""
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
    behind = state + np.arange(-1, longest + 1)
    behind = np.minimum(behind, last if most is None else last + 1)
    behind[:, 0] = last + 1
    if most is not None:
        behind[behind > last] = last + 1
    return TokenAutomaton(length, kind, behind, np.arange(last + 1) >= least)


@lru_cache(maxsize=64)
def value_automaton(
    expression: Expression, length: int, vocabulary: Vocabulary, pads: tuple[int, ...]
) -> TokenAutomaton:
    """The strings of an expression that `length` tokens can write, then pads."""
    automaton = Automaton(expression)
    by_first: dict[int, list[int]] = defaultdict(list)
    for token, value in enumerate(vocabulary.tokens):
        if value:
            by_first[value[0]].append(token)
    rows: list[np.ndarray] = []  # of each state: the one behind each token, -1 where there is none
    number = {0: 0}  # of the states of `automaton`, in the order in which they are met
    reached = [0]
    level_end, depth = 1, 0
    for state in reached:
        if len(rows) == level_end:
            level_end, depth = len(reached), depth + 1
        row = np.full(len(vocabulary), -1)
        for first, tokens in by_first.items() if depth < length else ():
            if automaton.step(state, first) < 0:
                continue
            for token in tokens:
                behind = automaton.run(state, vocabulary.tokens[token])
                if behind >= 0:
                    if behind not in number:
                        number[behind] = len(reached)
                        reached.append(behind)
                    row[token] = number[behind]
        rows.append(row)
    end = len(reached)
    accepting = np.array([*(automaton.accepts(state) for state in reached), True])
    rows.append(np.full(len(vocabulary), -1))
    table = np.stack(rows)
    table[:, list(pads)] = np.where(accepting, end, -1)[:, None]
    table[table < 0] = end + 1
    dead = np.full((end + 1, 1), end + 1)
    columns, kind = np.unique(np.concatenate([dead, table], 1), axis=1, return_inverse=True)
    kind = kind.ravel()
    none = kind[0]  # the kind of no token: it comes first
    order = np.concatenate([[none], np.delete(np.arange(columns.shape[1]), none)])
    return TokenAutomaton(length, np.argsort(order)[kind[1:]], columns[:, order], accepting)
