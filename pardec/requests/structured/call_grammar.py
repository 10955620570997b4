"""Calls of tools from left to right: text until a call begins, then JSON of the schema of the tool's parameters."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

import numpy as np

from pardec.models.errors import SpecError

from ..tools import CallForm, Tools
from .grammar import Grammar, Symbol
from .json_grammar import CompiledGrammar, JsonGrammar, check_budget
from .schema import read
from .values import Schema
from .vocabulary import Vocabulary


class CallRules(Grammar):
    """The rules of what follows the trigger of a call."""

    def __init__(self, form: CallForm, schemas: Mapping[str, Schema], *, parallel: bool) -> None:
        self.begin()
        end = (self._text(form.closing),) if form.closing else ()
        several = parallel and form.between is not None
        for at, schema in enumerate(schemas.values()):
            self.read(schema, f"arguments{at}")
        self.rules["start"] = [("first", "rest")]
        self.rules["first"] = self._calls(form, form.lead, schemas)
        self.rules["rest"] = [end, *([(self._text(form.between or ""), "call", "rest")] if several else [])]
        if several:
            self.rules["call"] = self._calls(form, form.head, schemas)
        self.check()

    def _calls(self, form: CallForm, head: str, names: Iterable[str]) -> list[tuple[Symbol, ...]]:
        tail = (self._text(form.tail),) if form.tail else ()
        opening = [self._text(head + json.dumps(name)[1:-1] + form.middle) for name in names]
        return [(each, f"arguments{at}", *tail) for at, each in enumerate(opening)]


@lru_cache(maxsize=32)
def _compiled(form: CallForm, parameters: str, parallel: bool, vocabulary: Vocabulary) -> CompiledGrammar:
    schemas = {}
    for name, schema in json.loads(parameters).items():
        try:
            schemas[name] = read(schema, ascii=not vocabulary.writes(json.dumps(schema, ensure_ascii=False)))
        except SpecError as error:
            message = error.message.replace("response_format", f"tools: the parameters of {name}", 1)
            raise SpecError(message, hint=error.hint) from None
    return CompiledGrammar(CallRules(form, schemas, parallel=parallel), vocabulary)


class CallGrammar:
    """The grammar of one row that may call tools; it also ends the row after its calls.

    Both depend on the ids that are passed alone. A copy, for another row, shares what is known of the vocabulary.
    """

    def __init__(self, tools: Tools, vocabulary: Vocabulary, budget: int, stop_ids: Sequence[int]) -> None:
        """`budget`: the most tokens of an answer. Raises SpecError if it is too small for a required call."""
        self.vocabulary, self.budget, self.stop_ids = vocabulary, budget, stop_ids
        parameters = json.dumps(tools.parameters, ensure_ascii=False)
        self.compiled = _compiled(tools.form, parameters, tools.parallel, vocabulary)
        self.at_start, self.trigger = tools.form.starts_answer, tools.form.trigger.encode()
        self.texts = _texts(vocabulary)
        special = {self.texts[token]: token for token in vocabulary.special if token < len(self.texts)}
        known = special.get(self.trigger)
        self.forced = ([known] if known is not None else vocabulary.encode(self.trigger)) if tools.required else []
        least = self.compiled.prefixes.cost(0) + len(self.forced)
        if tools.required:
            check_budget(least, budget, "a call of the tools: the shortest")
        self._completing: dict[int, list[tuple[int, bytes]]] = {}
        self._inner: tuple[tuple[int, ...], JsonGrammar] | None = None

    def mask(self, ids: Sequence[int]) -> np.ndarray:
        """[V] bool: the tokens that may follow the generated `ids`."""
        allowed = np.ones(len(self.vocabulary), dtype=bool)
        if len(ids) < len(self.forced):
            allowed[:] = False
            allowed[self.forced[len(ids)]] = True
            return allowed
        begun = self._begun(ids)
        if begun is not None:
            count, lead = begun
            return self._calls(count, lead).mask([*lead, *ids[count:]])
        prefixes, left = self.compiled.prefixes, self.budget - len(ids) - 1
        for token, rest in self._beginning(b"".join(self.texts[token] for token in ids if token >= 0)):
            if prefixes.cost(prefixes.run(0, rest)) > left:
                allowed[token] = False
        return allowed

    def first(self, ids: Sequence[int], known: int = 0) -> int | None:
        """The number of `ids` after which the calls are complete and no token can follow; None if tokens can."""
        begun = self._begun(ids)
        if begun is None:
            return None
        count, lead = begun
        skipped = len(lead) - count
        found = self._calls(count, lead).first([*lead, *ids[count:]], max(known, count) + skipped)
        return None if found is None else found - skipped

    def text_end(self, ids: Sequence[int]) -> int:
        """How many of the generated `ids` a stop string may end: those up to where a call begins."""
        if self.forced:
            return 0
        begun = self._begun(ids)
        return len(ids) if begun is None else begun[0]

    def _begun(self, ids: Sequence[int]) -> tuple[int, list[int]] | None:
        """The number of `ids` up to the trigger's end, and the ids of bytes that the last writes after it; or None."""
        if self.forced:
            return (len(self.forced), []) if len(ids) >= len(self.forced) else None
        each = [self.texts[token] if token >= 0 else b"" for token in ids]
        data = b"".join(each)
        at = data.find(self.trigger)
        if at < 0 or (self.at_start and data[:at].strip()):
            return None
        end, length = at + len(self.trigger), 0
        for count, text in enumerate(each, 1):
            length += len(text)
            if length >= end:
                return count, self.vocabulary.greedy(data[end:length]) or []
        return None

    def _beginning(self, data: bytes) -> list[tuple[int, bytes]]:
        """Tokens that complete the trigger in an answer that ends with `data`, each with its bytes after it."""
        if self.at_start:
            return [] if data.strip() else self._of_suffix(0)
        sizes = [size for size in range(len(self.trigger)) if data.endswith(self.trigger[:size])]
        return [pair for size in sizes for pair in self._of_suffix(size)]

    def _of_suffix(self, size: int) -> list[tuple[int, bytes]]:
        """The tokens that complete the trigger after its first `size` bytes."""
        if size not in self._completing:
            rest, pairs = self.trigger[size:], list[tuple[int, bytes]]()
            for token, text in enumerate(self.texts):
                if size == 0:
                    before, found, after = text.partition(rest)
                    if found and not (self.at_start and before.strip()):
                        pairs.append((token, after))
                elif text.startswith(rest):
                    pairs.append((token, text[len(rest) :]))
            self._completing[size] = pairs
        return self._completing[size]

    def _calls(self, count: int, lead: list[int]) -> JsonGrammar:
        key = (count, *lead)
        if self._inner is None or self._inner[0] != key:
            self._inner = key, JsonGrammar(self.compiled, self.budget - count + len(lead), self.stop_ids)
        return self._inner[1]


def _texts(vocabulary: Vocabulary) -> list[bytes]:
    """The bytes of every token; a special token has the bytes of its name, such as [TOOL_CALLS]."""
    texts = list(vocabulary.tokens)
    for token in vocabulary.special:
        if token < len(texts):
            texts[token] = str(vocabulary.tokenizer.convert_ids_to_tokens(token)).encode()
    return texts
