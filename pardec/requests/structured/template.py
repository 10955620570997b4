"""JSON of a schema for decoding in any order: its fixed text as the tokens of a template, with gaps for values.

Every gap gets the fewest positions that it needs. The rest of `max_new_tokens` is given to the gaps one position at a
time, in turn, while they can use more: a string up to its longest, a number up to `_MOST_POSITIONS`. A gap of a free
string allows any plain text at every position. The other gaps constrain their positions together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from pardec.models.errors import SpecError
from pardec.samplers.ops.token_automaton import TokenAutomaton
from pardec.samplers.request import Allowed, ConstrainedSpan

from .regular import Choice, Expression, Literal, choice
from .token_automata import TooManyStates, plain_lengths, text_automaton, value_automaton
from .values import Array, Map, Object, Reference, Scalar, Schema, Text, Union, Value, refusal
from .vocabulary import Vocabulary

_MOST_POSITIONS = 16  # positions of a gap that is not a string, unless its shortest value takes more
_MOST_ITEMS = 256
_DEEPEST = 64  # references within references


@dataclass(frozen=True)
class Gap:
    """Positions for one value: a string between its quotes, or a whole value."""

    value: Text | Scalar
    least: int
    most: int | None
    positions: int = 0


@dataclass(frozen=True, eq=False)
class Template:
    """The fixed tokens and gaps after the prompt.

    Attributes:
        rest: [T] int64: fixed tokens, the mask id in gaps.
        sets: [S, V] bool, and `at` [T] int64, as in `Allowed`.
        constrained_spans: the gaps whose positions are constrained together, with starts in `rest`.
    """

    rest: Tensor
    sets: Tensor
    at: Tensor
    constrained_spans: tuple[ConstrainedSpan, ...]

    def allowed(self, starts: Sequence[int]) -> Allowed | None:
        """The allowed sets of rows whose prompts have `starts` tokens."""
        if not self.at.any():
            return None
        return Allowed(self.sets, tuple(torch.nn.functional.pad(self.at, (start, 0)) for start in starts))

    def constrained_spans_of(self, start: int) -> tuple[ConstrainedSpan, ...]:
        """The gaps of a row whose prompt has `start` tokens."""
        return tuple(replace(gap, start=gap.start + start) for gap in self.constrained_spans)


@dataclass(frozen=True)
class TemplateEnd:
    """Ends a row whose template is filled, so that its finish reason is a stop and not a cut."""

    length: int  # tokens of the template

    def first(self, ids: Sequence[int], known: int = 0) -> int | None:
        """The template's length once there are that many ids, else None."""
        return self.length if known < self.length <= len(ids) else None


def template(schema: Schema, vocabulary: Vocabulary, budget: int, *, mask_id: int, pads: Sequence[int]) -> Template:
    """The template of a schema in at most `budget` tokens.

    Args:
        pads: the end and pad tokens, which fill the positions of a gap that its value does not use.

    Raises:
        SpecError: a part that cannot be filled in any order, with its path; or the budget is too small.
    """
    parts = _joined(_Parts(schema, vocabulary).of(schema.root), budget, budget * vocabulary.longest)
    fixed = [vocabulary.encode(part) if isinstance(part, str) else [] for part in parts]
    parts = _with_lengths(parts, budget - sum(map(len, fixed)), budget)
    rest: list[int] = []
    constrained_spans: list[ConstrainedSpan] = []
    lengths = plain_lengths(vocabulary)
    plain = lengths > 0
    plain[list(pads)] = True
    free: list[int] = []
    for part, ids in zip(parts, fixed, strict=True):
        if isinstance(part, Gap):
            if _is_free(part, int(lengths.max())):
                free += range(len(rest), len(rest) + part.positions)
            else:
                constrained_spans.append(ConstrainedSpan(len(rest), _automaton(part, vocabulary, tuple(pads))))
            rest += [mask_id] * part.positions
        rest += ids
    _check_text(vocabulary, fixed, parts)
    at = torch.zeros(len(rest), dtype=torch.int64)
    at[free] = 1
    sets = torch.from_numpy(np.stack([np.ones_like(plain), plain]))
    return Template(torch.tensor(rest, dtype=torch.int64), sets, at, tuple(constrained_spans))


class _Parts:
    """The fixed text and the gaps of values, in order."""

    def __init__(self, schema: Schema, vocabulary: Vocabulary) -> None:
        self.schema, self.vocabulary = schema, vocabulary
        self._open: list[str] = []  # the definitions that are being read

    def of(self, value: Value) -> Iterator[str | Gap]:
        if isinstance(value, Reference):
            if value.name in self._open:
                raise refusal(value.path, f"{value.name} contains itself, and a template has a fixed length")
            if len(self._open) >= _DEEPEST:
                raise refusal(value.path, f"references lead more than {_DEEPEST} levels deep")
            self._open.append(value.name)
            yield from self.of(self.schema.resolve(value))
            self._open.pop()
        elif isinstance(value, Object):
            for at, (name, member, _) in enumerate(value.members):
                yield ("," if at else "{") + self.schema.key(name)
                yield from self.of(member)
            yield "}"
        elif isinstance(value, Array):
            count = max(value.least, 1)
            if count > _MOST_ITEMS:
                raise refusal(value.path, f"{count} items are more than the {_MOST_ITEMS} that a template may have")
            for at in range(count):
                yield "," if at else "["
                yield from self.of(value.prefix[at] if at < len(value.prefix) else value.item)
            yield "]"
        elif isinstance(value, Map):
            raise refusal(
                value.path, "an object with free keys has no fixed text", "name its properties, with their types"
            )
        elif isinstance(value, Text):
            yield from self._text(value)
        else:
            assert isinstance(value, Scalar | Union), "every kind of value"
            yield from self._scalar(Scalar(value.path, self._expression(value)))

    def _expression(self, value: Value) -> Expression:
        """The regular expression of a value that takes one gap."""
        path, value = value.path, self.schema.resolve(value)
        if isinstance(value, Scalar | Text):
            return value.expression
        if isinstance(value, Union):
            return choice([self._expression(option) for option in value.options])
        raise refusal(
            path,
            "an object or array cannot be one of several options: their fixed text would differ",
            "choose one option",
        )

    def _text(self, value: Text) -> Iterator[str | Gap]:
        yield '"'
        if value.most != 0:
            yield Gap(value, max(1, -(-value.least // 3)), value.most)
        yield '"'

    def _scalar(self, value: Scalar) -> Iterator[str | Gap]:
        expression = value.expression
        options = expression.options if isinstance(expression, Choice) else (expression,)
        texts = [option.value for option in options if isinstance(option, Literal)]
        if len(texts) == len(options):
            if len(texts) == 1:
                yield texts[0].decode()
                return
            longest = max(len(self.vocabulary.encode(text)) for text in texts)
            yield Gap(value, longest, longest)
            return
        least = len(self.vocabulary.greedy(expression.shortest or b"") or [])
        most = max(least, _MOST_POSITIONS)
        yield Gap(value, least, most if expression.longest is None else min(most, expression.longest))


def _joined(parts: Iterator[str | Gap], most: int, longest: int) -> list[str | Gap]:
    """Joins adjacent texts. Raises SpecError above `most` gaps or `longest` characters of fixed text.

    Definitions that refer to each other may describe more than can be counted.
    """
    result: list[str | Gap] = []
    for part in parts:
        most, longest = (most, longest - len(part)) if isinstance(part, str) else (most - 1, longest)
        if min(most, longest) < 0:
            raise SpecError(
                "max_new_tokens is too few for response_format: it does not have room for the fixed text and every gap",
                hint="raise max_new_tokens, or ask for less in one answer",
            )
        if isinstance(part, str) and result and isinstance(result[-1], str):
            result[-1] += part
        else:
            result.append(part)
    return result


def _with_lengths(parts: list[str | Gap], left: int, budget: int) -> list[str | Gap]:
    """Assigns numbers of positions to the gaps, `left` in total."""
    gaps = [part for part in parts if isinstance(part, Gap)]
    counts = [gap.least for gap in gaps]
    left -= sum(counts)
    if left < 0:
        raise SpecError(
            f"max_new_tokens={budget} is too few for response_format: its template takes {budget - left} tokens",
            hint=f"max_new_tokens={2 * (budget - left)} leaves room for longer values",
        )
    growing = list(range(len(gaps)))
    while left and growing:
        growing = [at for at in growing if gaps[at].most is None or counts[at] < (gaps[at].most or 0)]
        for at in growing[:left]:
            counts[at] += 1
        left -= min(left, len(growing))
    sized = iter([replace(gap, positions=count) for gap, count in zip(gaps, counts, strict=True)])
    return [next(sized) if isinstance(part, Gap) else part for part in parts]


def _is_free(gap: Gap, longest: int) -> bool:
    """Whether any plain token may stand at each position of a gap, independently of the others."""
    value = gap.value
    return (
        isinstance(value, Text) and value.least == 0 and (value.most is None or gap.positions * longest <= value.most)
    )


def _automaton(gap: Gap, vocabulary: Vocabulary, pads: tuple[int, ...]) -> TokenAutomaton:
    value = gap.value
    if isinstance(value, Text):
        automaton = text_automaton(value.least, value.most, gap.positions, vocabulary, pads)
    else:
        try:
            automaton = value_automaton(value.expression, gap.positions, vocabulary, pads)
        except TooManyStates:
            hint = "write a simpler pattern, and anchor it with ^ and $"
            raise refusal(value.path, f"too many states within {gap.positions} tokens", hint) from None
    if not automaton.allows(np.full(gap.positions, -1)):
        raise refusal(value.path, f"no value fits in {gap.positions} tokens", "raise max_new_tokens")
    return automaton


def _check_text(vocabulary: Vocabulary, fixed: Sequence[Sequence[int]], parts: Sequence[str | Gap]) -> None:
    """Refuses a tokenizer whose decoding does not reproduce the fixed text."""
    text = "".join(part for part in parts if isinstance(part, str))
    ids = [token for each in fixed for token in each]
    if vocabulary.tokenizer.decode(ids, skip_special_tokens=True) != text:
        raise SpecError(
            "the tokenizer does not decode the fixed text of response_format to itself",
            hint="ask for JSON in the prompt instead",
        )
