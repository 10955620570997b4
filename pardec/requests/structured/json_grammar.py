"""JSON of a schema from left to right: the tokens that may follow the generated ones within a row's budget.

llguidance computes the masks over the vocabulary, each in a fraction of a millisecond. It does not know how long the
rest of an answer has to be, so a token is excluded if the shortest end after it does not fit in the rest of
`max_new_tokens`. Every answer is therefore complete, however it is sampled.
"""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from pardec.models.errors import SpecError, install

from .grammar import Grammar, Prefixes
from .schema import read
from .values import refusal
from .vocabulary import Vocabulary

_STATES = 64  # states for which the costs of all tokens are kept


class CompiledGrammar:
    """The grammar that the rows of one schema share."""

    def __init__(self, grammar: Grammar, vocabulary: Vocabulary) -> None:
        self.vocabulary, self.grammar = vocabulary, grammar
        self.prefixes = Prefixes(self.grammar, vocabulary)
        self.lark = self.grammar.lark()
        error = _llguidance().LLMatcher.validate_grammar(self.lark, _ll_tokenizer(vocabulary))
        if error:
            raise refusal("#", f"llguidance cannot read its grammar: {error.splitlines()[0]}")
        self._costs: OrderedDict[int, np.ndarray] = OrderedDict()
        self.reserve = self.prefixes.reserve()  # most tokens from any prefix to its shortest end

    def matcher(self) -> Any:
        """A new parser of llguidance, at its start."""
        return _llguidance().LLMatcher(_ll_tokenizer(self.vocabulary), self.lark, log_level=0)

    def costs(self, state: int, tokens: np.ndarray) -> np.ndarray:
        """[N] the length of the shortest rest of an answer after `state` and each of `tokens` [N]; infinite if none."""
        known = self._costs.setdefault(state, np.full(len(self.vocabulary), np.nan))
        self._costs.move_to_end(state)
        if len(self._costs) > _STATES:
            self._costs.popitem(last=False)
        prefixes, each = self.prefixes, self.vocabulary.tokens
        for token in tokens[np.isnan(known[tokens])].tolist():
            known[token] = prefixes.cost(prefixes.run(state, each[token])) if each[token] else math.inf
        costs: np.ndarray = known[tokens]
        return costs


@lru_cache(maxsize=32)
def _compiled(schema_text: str, vocabulary: Vocabulary) -> CompiledGrammar:
    schema = read(json.loads(schema_text), ascii=not vocabulary.writes(schema_text))
    return CompiledGrammar(Grammar(schema), vocabulary)


def compiled(schema_text: str, vocabulary: Vocabulary) -> CompiledGrammar:
    """The grammar of a schema, made once. Raises SpecError if it is unsupported or llguidance is not installed."""
    _llguidance()
    return _compiled(schema_text, vocabulary)


def check_budget(least: float, budget: int, what: str) -> None:
    """Raises SpecError if `what`, which takes at least `least` tokens, does not fit in `budget`."""
    if least > budget:
        raise SpecError(
            f"max_new_tokens={budget} is too few for {what} takes {least:.0f}",
            hint=f"max_new_tokens={4 * least:.0f} leaves room for more than that",
        )


class JsonGrammar:
    """The grammar of one row; it also ends the row when no token can follow.

    Both depend on the ids that are passed alone.
    """

    def __init__(self, compiled: CompiledGrammar, budget: int, stop_ids: Sequence[int]) -> None:
        """`budget`: the most tokens of an answer. `stop_ids`: allowed where an answer may end."""
        self.compiled, self.budget, self.stop_ids = compiled, budget, list(stop_ids)
        self._matcher: Any = compiled.matcher()
        self._ids: list[int] = []  # ids that the matcher has read
        self._states = [0]  # the state before each id, and after the last

    def mask(self, ids: Sequence[int]) -> np.ndarray:
        """[V] bool: the tokens that may follow the generated `ids`; all, if these are not a prefix of an answer."""
        size = len(self.compiled.vocabulary)
        if not self._read(ids):
            return np.ones(size, dtype=bool)
        state, prefixes = self._states[-1], self.compiled.prefixes
        allowed = np.zeros(size, dtype=bool)
        if not prefixes.final(state):
            bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
            allowed |= np.unpackbits(bits, bitorder="little")[:size].astype(bool)
            allowed[end_id(self.compiled.vocabulary)] = False
            left = self.budget - len(ids) - 1
            if left < self.compiled.reserve or self._matcher.is_error():
                allowed = self._fitting(state, allowed, left)
        if prefixes.accepts(state):
            allowed[self.stop_ids] = True
        return allowed if allowed.any() else ~allowed

    def first(self, ids: Sequence[int], known: int = 0) -> int | None:
        """The number of `ids` after which an answer is complete and no token can follow; None if tokens can.

        Nothing can follow the budget's last token either.
        """
        prefixes = self.compiled.prefixes
        for count in range(known + 1, len(ids) + 1):
            if not self._read(ids[:count]):
                return None
            state = self._states[-1]
            if prefixes.final(state) or (count == self.budget and prefixes.accepts(state)):
                return count
        return None

    def text_end(self, ids: Sequence[int]) -> int:
        """How many of the generated `ids` a stop string may end: all."""
        return len(ids)

    def _fitting(self, state: int, allowed: np.ndarray, left: int) -> np.ndarray:
        """The tokens of `allowed` after which an answer can end within `left` more; if none, all such tokens."""
        for each in (allowed.nonzero()[0], np.arange(len(allowed))):
            fits = each[self.compiled.costs(state, each) <= left]
            if len(fits):
                break
        result = np.zeros_like(allowed)
        result[fits] = True
        return result

    def _read(self, ids: Sequence[int]) -> bool:
        """Moves to the state after `ids`; returns whether they are a prefix of an answer."""
        same = 0
        for old, new in zip(self._ids, ids, strict=False):
            if old != new:
                break
            same += 1
        if same < len(self._ids):
            if not self._matcher.rollback(len(self._ids) - same):
                self._matcher, same = self.compiled.matcher(), 0
            del self._ids[same:], self._states[same + 1 :]
        for token in ids[same:]:
            value = self.compiled.vocabulary.tokens[token] if token >= 0 else b""
            state = self.compiled.prefixes.run(self._states[-1], value) if value else -1
            if state < 0 or not self._matcher.try_consume_tokens([int(token)]):
                return False
            self._ids.append(int(token))
            self._states.append(state)
        return True


def _llguidance() -> Any:
    try:
        import llguidance
    except ImportError:
        raise SpecError(
            "response_format on an autoregressive model needs llguidance, which is not installed",
            hint=install("structured"),
        ) from None
    return llguidance


@lru_cache(maxsize=4)
def _ll_tokenizer(vocabulary: Vocabulary) -> Any:
    """The vocabulary as llguidance reads it."""
    library = _llguidance()

    return library.LLTokenizer(library.TokenizerWrapper(_Source(vocabulary)), n_vocab=len(vocabulary), slices=[])


class _Source:
    """A vocabulary with the attributes that llguidance asks a tokenizer for."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.eos_token_id, self.bos_token_id = end_id(vocabulary), None
        self.tokens = [value or b"\xff" + str(token).encode() for token, value in enumerate(vocabulary.tokens)]
        self.special_token_ids = [token for token, value in enumerate(vocabulary.tokens) if not value]

    def __call__(self, value: str | bytes) -> list[int]:
        return self.vocabulary.encode(value)


def end_id(vocabulary: Vocabulary) -> int:
    """An id without text that ends an answer for llguidance."""
    return next(at for at, value in enumerate(vocabulary.tokens) if not value)
