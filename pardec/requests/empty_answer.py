"""Explains empty answers: a model often answers nothing if prompts have another form than in its training."""

from __future__ import annotations

import warnings
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


def warn(model: Engine, result: Result, prompt: Any, *, stacklevel: int) -> None:
    """Warns of empty rows of `result` if the likely reason is known."""
    count = sum(not generated for generated in result.generated)
    if not count or result.text is None:
        return
    plain = isinstance(prompt, str) or (isinstance(prompt, list) and all(isinstance(one, str) for one in prompt))
    reason = explain_empty(model, plain=plain, way_out='pass messages, [{"role": "user", "content": "..."}]')
    if reason is not None:
        silence = 'warnings.simplefilter("ignore", pardec.EmptyAnswer)'
        message = f"{sentence(count, len(result.generated))}: {reason} ({silence} silences this)"
        warnings.warn(message, EmptyAnswer, stacklevel=stacklevel + 1)


def sentence(count: int, rows: int) -> str:
    """How many answers are empty, in words.

    >>> sentence(1, 1), sentence(2, 3)
    ('the answer is empty', '2 of 3 answers are empty')
    """
    return "the answer is empty" if rows == 1 else f"{count} of {rows} answers {'is' if count == 1 else 'are'} empty"


def _join(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
