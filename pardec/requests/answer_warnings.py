"""Warns of answers that are empty or cut, and of drafts that cost more time than they saved.

A model often answers nothing if prompts have another form than in its training.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pardec.models.files.catalog import EMBEDDED

if TYPE_CHECKING:
    from ..engine import Engine
    from ..result import Result


class EmptyAnswer(UserWarning):
    """Some answers have no tokens; another form of prompt may help."""


def explain_empty(model: Engine, *, plain: bool, way_out: str) -> str | None:
    """The likely reason for an empty answer, in words; None if none is known.

    Args:
        plain: the prompts are text, in no chat template.
        way_out: how to use a chat template.
    """
    tasks = tasks_of(model)
    if tasks:
        return f'{model.name} is trained on {_join(tasks)} only; "pardec list tasks" shows examples of its prompts'
    if plain and getattr(model.tokenizer, "chat_template", None):
        return f"{model.name} has a chat template and the prompt is plain text; {way_out}"
    return None


def tasks_of(model: Engine) -> list[str]:
    """The tasks for which an embedded model's card has accuracies; none for other models."""
    if model.path is None or model.path.parent != EMBEDDED:
        return []
    from ..cards import list_models

    figures: Any = next(card.accuracy for card in list_models() if card.name == model.path.name)
    return list(dict.fromkeys(task for one in figures.values() for task in one.get("problems", {})))


def warn_of_empty(model: Engine, result: Result, prompt: Any, *, stacklevel: int) -> None:
    """Warns of empty rows of `result` if the likely reason is known."""
    count = sum(not generated for generated in result.generated)
    if not count or result.text is None:
        return
    plain = isinstance(prompt, str) or (isinstance(prompt, list) and all(isinstance(one, str) for one in prompt))
    reason = explain_empty(model, plain=plain, way_out='pass messages, [{"role": "user", "content": "..."}]')
    if reason is not None:
        silence = 'warnings.simplefilter("ignore", pardec.EmptyAnswer)'
        message = f"{empty_sentence(count, len(result.generated))}: {reason} ({silence} silences this)"
        warnings.warn(message, EmptyAnswer, stacklevel=stacklevel + 1)


def empty_sentence(count: int, rows: int) -> str:
    """How many answers are empty, in words.

    >>> empty_sentence(1, 1), empty_sentence(2, 3)
    ('the answer is empty', '2 of 3 answers are empty')
    """
    return "the answer is empty" if rows == 1 else f"{count} of {rows} answers {'is' if count == 1 else 'are'} empty"


def _join(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


_SLOWER = 1.1  # times the seconds of plain decoding that are said
_said = set[tuple[str, str]]()  # models and specs


class SlowDrafts(UserWarning):
    """Drafts cost more time than they saved."""


def warn_of_slow_drafts(result: Result, seconds: tuple[float, float | None] | None, *, stacklevel: int) -> None:
    """Warns once per model and spec. `seconds`: of all rounds, and of plain ones for the same tokens, where known."""
    if seconds is None or seconds[1] is None or seconds[0] < _SLOWER * seconds[1]:
        return
    key = result.model, result.spec
    clocked = result.spec.startswith("auto:") and "measured=false" not in result.spec
    if key in _said or clocked:  # it leaves out what costs more, after a few rounds
        return
    _said.add(key)
    spent, plain = seconds
    warnings.warn(
        f"{result.spec} took {spent:.3g} s, and plain decoding would have taken {plain:.3g} s for the same tokens, by "
        'its measured rounds; sampler="auto" drafts only where that saves time',
        SlowDrafts,
        stacklevel=stacklevel + 1,
    )


def is_cut(row: Mapping[str, Any], settings: Mapping[str, Any]) -> bool:
    """Whether the answer of a row was cut at `max_new_tokens`.

    Args:
        row: with its `tokens`, how many were `generated` before an end token, and `finish`.
        settings: the call's `max_new_tokens` and `stop_ids`; without end tokens, the length is as requested.
    """
    length = len(row["tokens"])
    ends = bool(settings.get("stop_ids"))  # images have none
    return ends and row["finish"] == "length" and length == row["generated"] == settings["max_new_tokens"]


def cut_sentence(cut: int, rows: int, tokens: int | None) -> str:
    """How many answers were cut, and at which length, in words.

    >>> cut_sentence(1, 1, 64), cut_sentence(2, 3, None)
    ('the answer was cut at 64 tokens', '2 of 3 answers were cut at their longest length')
    """
    where = "their longest length" if tokens is None else f"{tokens} tokens"
    if rows == 1:
        return f"the answer was cut at {where}"
    return f"{cut} of {rows} answers {'was' if cut == 1 else 'were'} cut at {where}"
