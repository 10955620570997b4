"""A finite automaton over the tokens of a few neighbouring positions, some of them committed, in any order.

    F_0 = {start},  F_i+1 = step(F_i, k_i)        the states before each position
    B_n = accepting,  B_i = {s : step(s, k_i) in B_i+1}        those from which the rest can end
    allowed at i = {k : some s in F_i has step(s, k) in B_i+1}

where k_i is the kind of the token committed at i, any kind where it is open. A token of the set of an open position can
be committed there whatever the others hold, as long as one is committed at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class TokenAutomaton:
    """A finite automaton over the tokens that `length` positions may hold together.

    Attributes:
        kind: [V] int: the kind of each token, 0 for those that may stand nowhere.
        step: [S, K] int: the state after a token of each kind, S where there is none; column 0 is S throughout.
        accepting: [S] bool: the states in which the last position may end. State 0 is the start.
    """

    length: int
    kind: np.ndarray
    step: np.ndarray
    accepting: np.ndarray

    def sets(self, tokens: np.ndarray) -> np.ndarray:
        """[n, V] bool: the tokens allowed at each position, given the other `tokens` [n], -1 where open."""
        kinds = self._kinds(tokens)
        before, completable = self._before(kinds), self._completable(kinds)
        states = len(self.accepting)
        result = np.zeros((self.length, self.step.shape[1]), dtype=bool)
        for position in range(self.length):
            rest = np.append(completable[position + 1], False)
            result[position] = rest[self.step[before[position][:states]]].any(0)
        return result[:, self.kind]

    def allows(self, tokens: np.ndarray) -> bool:
        """Whether the open positions, -1 in `tokens` [n], can be filled."""
        return bool(self._completable(self._kinds(tokens))[0][0])

    def _kinds(self, tokens: np.ndarray) -> np.ndarray:
        """[n, K] bool: the token kinds still possible at each position."""
        every = np.arange(self.step.shape[1])
        own = self.kind[np.maximum(tokens, 0)][:, None] == every
        allowed: np.ndarray = np.where(tokens[:, None] < 0, True, own)
        allowed[:, 0] = False
        return allowed

    def _before(self, kinds: np.ndarray) -> np.ndarray:
        """[n, S + 1] bool: the states reachable before each position; the last column is no state and meaningless."""
        result = np.zeros((self.length, len(self.accepting) + 1), dtype=bool)
        result[0, 0] = True
        for position in range(self.length - 1):
            states = result[position, :-1]
            result[position + 1, self.step[states][:, kinds[position]].ravel()] = True
        return result

    def _completable(self, kinds: np.ndarray) -> np.ndarray:
        """[n + 1, S] bool: the states before each position, and after the last, from which the rest can be filled."""
        result = np.zeros((self.length + 1, len(self.accepting)), dtype=bool)
        result[-1] = self.accepting
        for position in range(self.length - 1, -1, -1):
            rest = np.append(result[position + 1], False)
            result[position] = (rest[self.step] & kinds[position]).any(1)
        return result
