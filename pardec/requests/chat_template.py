"""Whether text prompts go into a model's chat template, as user messages; the same default in all commands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pardec.models.errors import SpecError
from pardec.models.files.catalog import EMBEDDED

if TYPE_CHECKING:
    from ..engine import Engine


def has_template(model: Engine) -> bool:
    """Whether the model writes text and its tokenizer has a chat template."""
    return model.imaging is None and bool(getattr(model.tokenizer, "chat_template", None))


def is_embedded(model: Engine) -> bool:
    """Whether the model ships with the package."""
    return model.path is not None and model.path.parent == EMBEDDED


def applies(model: Engine, chat: bool | None) -> bool:
    """Whether text prompts become user messages.

    Args:
        chat: True or False, as asked for; None is the default: if the model has a template, unless it is an embedded
            one, which are trained on plain text.

    Raises:
        SpecError: `chat` is True and the model has no template.
    """
    if chat and not has_template(model):
        raise SpecError(f"{model.name} has no chat template", hint="chat=False passes prompts as plain text")
    return has_template(model) and not is_embedded(model) if chat is None else bool(chat)


def worth_saying(model: Engine, chat: bool | None) -> bool:
    """Whether a text can be passed in two ways; embedded models are trained on plain text alone."""
    return has_template(model) and (chat is not None or not is_embedded(model))


def as_message(prompt: Any) -> Any:
    """Wraps a text in a conversation with one user message; returns any other prompt unchanged."""
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt


def sentence(model: str, *, applied: bool, what: str = "the prompts are") -> str:
    """Says in which of the two ways texts were passed, and how to select the other.

    >>> sentence("m", applied=True)
    'the prompts are in the chat template of m, as user messages; --raw (chat=False) passes plain text'
    """
    if applied:
        form = "a user message" if what.endswith(" is") else "user messages"
        return f"{what} in the chat template of {model}, as {form}; --raw (chat=False) passes plain text"
    return f"{what} plain text, and {model} has a chat template; --chat (chat=True) applies it"
