"""The prompts of a call as rows of ids, without padding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pardec.models.errors import SpecError


def encode(
    tokenizer: Any,
    prompt: str | Sequence[str] | None,
    messages: Sequence[Any] | None,
    use_chat_template: bool,
    add_generation_prompt: bool,
) -> list[list[int]]:
    """Text or chat messages as ids; text becomes a user message if the tokenizer has a chat template."""
    if (prompt is None) == (messages is None):
        raise SpecError(
            "a request needs exactly one of prompt, messages and input_ids",
            hint='for example prompt="Name three fjords."',
        )
    if tokenizer is None:
        raise SpecError("the model has no tokenizer", hint="pass input_ids, or tokenizer=")
    if messages is None:
        texts = [prompt] if isinstance(prompt, str) else list(prompt or ())
        if not use_chat_template or not getattr(tokenizer, "chat_template", None):
            return [list(tokenizer(text)["input_ids"]) for text in texts]
        conversations: list[Any] = [[{"role": "user", "content": text}] for text in texts]
    else:
        conversations = [messages] if messages and isinstance(messages[0], Mapping) else list(messages)
    options = {"add_generation_prompt": add_generation_prompt, "tokenize": True, "return_dict": True}
    return [list(tokenizer.apply_chat_template(talk, **options)["input_ids"]) for talk in conversations]


def remove_padding(input_ids: Tensor, attention_mask: Tensor | None) -> list[list[int]]:
    """Rows of ids where the mask is not 0."""
    if not isinstance(input_ids, Tensor) or input_ids.ndim not in (1, 2) or input_ids.dtype != torch.int64:
        kind = (
            f"{input_ids.dtype} {list(input_ids.shape)}" if isinstance(input_ids, Tensor) else type(input_ids).__name__
        )
        raise SpecError(f"input_ids must be a LongTensor [P] or [B, P], got {kind}")
    ids = input_ids[None] if input_ids.ndim == 1 else input_ids
    if attention_mask is None:
        return [list(row) for row in ids.tolist()]
    real = (attention_mask[None] if attention_mask.ndim == 1 else attention_mask) != 0
    if real.shape != ids.shape:
        raise SpecError(f"attention_mask is {list(real.shape)} and input_ids {list(ids.shape)}", hint="they must agree")
    if ((real[:, 1:] & ~real[:, :-1]).sum(1) + real[:, 0] > 1).any():
        raise SpecError("attention_mask has a gap inside a prompt", hint="mark padding on the left or the right only")
    return [row[mask].tolist() for row, mask in zip(ids, real, strict=True)]


def pad(pipeline: Any, call: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """Ids and mask [B, P] as in LLaDA2Pipeline, also for lists of conversations; padded by the tokenizer."""
    names = ("prompt", "messages", "input_ids", "attention_mask", "use_chat_template", "add_generation_prompt")
    texts = {name: call[name] for name in names}
    prompt: Any = texts["prompt"]
    messages: Any = texts["messages"]
    if isinstance(prompt, list) and texts["use_chat_template"] and getattr(pipeline.tokenizer, "chat_template", None):
        prompt, messages = None, [[{"role": "user", "content": text}] for text in prompt]
    is_batch = bool(messages) and not isinstance(messages[0], Mapping)
    try:
        ids, mask = pipeline._prepare_input_ids(
            **{**texts, "prompt": prompt, "messages": messages},
            chat_template_kwargs={"padding": True} if is_batch else None,
        )
    except ValueError as error:
        raise SpecError(str(error), hint="LLaDA2Pipeline's documentation has its arguments") from error
    return ids.long(), mask  # a tokenizer returns floats for empty text
