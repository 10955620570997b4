"""Encodes every form of prompt as rows of token ids.

Text is encoded by the tokenizer, messages by its chat template; ids are used unchanged. Rows may differ in length.
"""

from __future__ import annotations

import inspect
import json
import re
import reprlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from pardec.models.errors import SpecError, one_line

from .argument import check_count, is_whole
from .tools import conversation

if TYPE_CHECKING:
    from pardec.models.model import LanguageModel


class ContextError(SpecError):
    """A prompt and the tokens to generate after it are longer than the model's context."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row before decoding: the prompt's ids, then the rest, with the mask id at positions to fill. Both [.] int64.

    For an autoregressive model, which has no mask token, positions to fill are -1.
    """

    prompt: Tensor
    rest: Tensor
    answer: int | None = None  # the positions of `rest` that the result has; None: all

    @property
    def canvas(self) -> Tensor:  # [P + T]
        return torch.cat([self.prompt, self.rest])


def encode(
    model: LanguageModel,
    prompt: Any,
    input_ids: Any,
    template: Any,
    max_new_tokens: int,
    *,
    beyond: bool = False,
    tools: Any = None,
    variables: Mapping[str, Any] | None = None,
) -> list[Row]:
    """The rows that `generate` decodes.

    Args:
        prompt: str, list of str, one conversation (list of messages) or a list of conversations.
        input_ids: in place of a prompt, [B, P] or a list of 1-D tensors or lists, which may differ in length.
        template: what follows the prompt, in place of max_new_tokens masks: text with mask tokens, or ids with None or
            the mask id at positions to fill. One for all rows, or a list with one per row. With a template the prompt
            may be left out.
        beyond: rows may be longer than the checkpoint was made for.
        tools: that a conversation shows, in OpenAI's form.
        variables: of the chat template.

    Raises:
        SpecError: naming the row and the value that cannot work.
    """
    if prompt is not None and input_ids is not None:
        raise SpecError("both a prompt and input_ids are given", hint="pass one of them")
    if prompt is None and input_ids is None and template is None:
        raise SpecError(
            "no prompt is given", hint='pass text, model.generate("..."), or token ids, model.generate(input_ids=...)'
        )
    mask = open_id(model)
    if template is not None and not model.decoding_config.masked:
        raise SpecError(
            f"{model.name} writes from left to right and cannot fill a template", hint="leave template= out"
        )
    templates = None if template is None else _templates(model, template, mask)
    if prompt is not None:
        encoded = enumerate(_encode(model, prompt, tools=tools, variables=variables))
        prompts = [_ids_tensor(model, ids, f"prompt {i}") for i, ids in encoded]
    elif variables:
        raise SpecError("chat_template_kwargs are for messages, and no prompt is given", hint=_NO_VARIABLES)
    elif input_ids is not None:
        id_rows = enumerate(_id_rows(input_ids, "input_ids"))
        prompts = [_ids_tensor(model, ids, f"input_ids row {i}") for i, ids in id_rows]
    else:
        prompts = [torch.empty(0, dtype=torch.int64)] * len(templates or ())
    for i, ids in enumerate(prompts):
        if (ids == mask).any():
            position = int((ids == mask).nonzero()[0])
            raise SpecError(
                f"prompt {i} holds the mask token (id {mask}) at position {position}",
                hint="text with gaps to fill goes to template=, the text before it to the prompt",
            )
    if templates is None:
        # before rows of that length are allocated
        check_length(model, [len(ids) + max_new_tokens for ids in prompts], beyond=beyond)
        rest = torch.full((max_new_tokens,), mask)
        if model.decoding_config.anchors and max_new_tokens:
            return [_on_canvas(model, row, ids, rest) for row, ids in enumerate(prompts)]
        return [Row(ids, rest) for ids in prompts]
    if len(templates) not in (1, len(prompts)):
        raise SpecError(
            f"{len(templates)} templates for {len(prompts)} prompts", hint="give one template, or one for each prompt"
        )
    return [Row(ids, templates[i if len(templates) > 1 else 0]) for i, ids in enumerate(prompts)]


def _on_canvas(model: LanguageModel, row: int, prompt: Tensor, answer: Tensor) -> Row:
    """A row with the whole canvas: the answer, the tokens that end it, and masks up to the canvas's length.

    Raises ContextError for a row that does not fit into one.
    """
    config = model.decoding_config
    assert config.block is not None, "a canvas has a length"
    needed = len(prompt) + len(answer) + len(config.anchors)
    if needed > config.block:
        raise ContextError(
            f"row {row} needs {needed} positions with the tokens that end it, and a canvas of {model.name} has "
            f"{config.block}",
            hint="shorten the prompt, generate fewer new tokens, or load the model with another block= (--block)",
        )
    after = torch.full((config.block - needed,), open_id(model))
    return Row(prompt, torch.cat([answer, torch.tensor(config.anchors), after]), len(answer))


def check_length(model: LanguageModel, lengths: list[int], *, beyond: bool = False) -> None:
    """Refuses rows longer than the model's context; with `beyond`, rows longer than it can be run with at all."""
    limit = min(filter(None, (None if beyond else model.max_positions, model.limit)), default=None)
    if limit is not None and max(lengths) > limit:
        row = lengths.index(max(lengths))
        raise ContextError(
            f"row {row} needs {lengths[row]} positions and {model.name} has {limit}",
            hint="shorten the prompt or generate fewer new tokens",
        )


def open_id(model: LanguageModel) -> int:
    """The id at positions to fill: the mask id, or -1 for a model that has none."""
    if not model.decoding_config.masked:
        return -1
    assert model.decoding_config.mask_id is not None, "a masked model has one"
    return model.decoding_config.mask_id


def encode_plain(model: LanguageModel, texts: str | Sequence[str]) -> list[list[int]]:
    """Texts as ids, without the special tokens that the tokenizer adds. Raises SpecError."""
    return _encode(model, texts, special=False)


def _encode(
    model: LanguageModel,
    prompt: Any,
    *,
    special: bool = True,
    tools: Any = None,
    variables: Mapping[str, Any] | None = None,
) -> list[list[int]]:
    if isinstance(prompt, str):
        prompt = [prompt]
    if isinstance(prompt, Tensor | bytes) or not isinstance(prompt, Sequence):
        raise SpecError(
            f"a prompt must be text, a list of texts or chat messages, got {type(prompt).__name__}",
            hint="token ids go to input_ids=, and an iterator or an array of texts into list(...)",
        )
    if not prompt:
        raise SpecError("the list of prompts is empty", hint="give at least one prompt")
    check_count("prompt", prompt)
    if all(isinstance(item, Mapping) for item in prompt):
        prompt = [prompt]
    elif all(is_whole(item) for item in prompt):
        raise SpecError("the prompt is a list of whole numbers", hint="token ids go to input_ids=, as [[1, 2, 3]]")
    tokenizer = _tokenizer(model)
    one = partial(_encode_one, model, tokenizer, special=special, tools=tools, variables=variables or {})
    return [one(row, item) for row, item in enumerate(prompt)]


_NO_VARIABLES = "leave chat_template_kwargs out, or pass messages"


def _encode_one(
    model: LanguageModel,
    tokenizer: Any,
    row: int,
    item: Any,
    *,
    special: bool,
    tools: Any,
    variables: Mapping[str, Any],
) -> list[int]:
    if isinstance(item, str):
        if variables:
            raise SpecError(f"chat_template_kwargs are for messages, and prompt {row} is text", hint=_NO_VARIABLES)
        if tools:
            raise SpecError(f"tools belong to a conversation, and prompt {row} is text", hint="pass messages")
        if not item.strip():
            raise SpecError(f"prompt {row} is empty", hint="give at least one word")
        tokenize = partial(tokenizer, item, add_special_tokens=special)
        ids = _read(f"prompt {row} cannot be read", item, tokenize, "give plain text")
        return ids[1:] if special and _begins_twice(tokenizer, item, ids) else ids
    if not isinstance(item, Sequence) or not item or not all(_is_message(message) for message in item):
        raise SpecError(
            f"prompt {row} is neither text nor a list of messages",
            hint='a message is {"role": "user", "content": "..."}',
        )
    if not tokenizer.chat_template:
        raise SpecError(f"{model.name} has no chat template", hint="pass the prompt as plain text")
    item = [_with_text(row, message, str(tokenizer.chat_template)) for message in item]
    messages, shown = conversation(model, item, tools)
    options: Any = {"tools": shown, "add_generation_prompt": True, "tokenize": True, "return_dict": True}
    template = f"the chat template of {model.name}"
    for name in variables:
        taken = {"messages", *inspect.signature(tokenizer.apply_chat_template).parameters}
        if name in taken or not re.search(rf"\b{re.escape(name)}\b", str(tokenizer.chat_template)):
            raise SpecError(f"chat_template_kwargs has {name!r}, which {template} does not use", hint="leave it out")
    hint = "it may want no system message, or messages of user and assistant in alternation"
    apply = partial(tokenizer.apply_chat_template, messages, **variables, **options)
    ids = _read(f"{template} does not take prompt {row}", item, apply, hint)
    text = str(tokenizer.decode(ids, skip_special_tokens=True))
    if not text.strip():
        raise SpecError(f"{template} shows no text of prompt {row}", hint="give a message of the user with some text")
    _warn_of_left_out(template, messages, text, partial(apply, tokenize=False, return_dict=False))
    return ids


def _warn_of_left_out(
    template: str, messages: Sequence[Mapping[str, Any]], text: str, render: Callable[[], Any]
) -> None:
    """Warns if a template leaves a system message out, as templates of models trained without system messages do.

    Some tokenizers change text, so that what `text`, the ids decoded, lacks is looked for in the rendered template.
    """
    given = {"".join(str(message["content"]).split()) for message in messages if message["role"] == "system"}
    missing = [one for one in given if one not in "".join(text.split())]
    if missing and any(one not in "".join(str(render()).split()) for one in missing):
        warnings.warn(f"{template} leaves a system message out: the model does not read it", stacklevel=2)


def _with_text(row: int, message: Mapping[str, Any], template: str) -> dict[str, Any]:
    """A message with its content as one text, and of a role that templates know. Raises SpecError for other content."""
    content = message.get("content")
    if isinstance(content, Sequence) and not isinstance(content, str):
        parts = (part for part in content if isinstance(part, Mapping))
        texts = [part["text"] for part in parts if isinstance(part.get("text"), str)]
        content = "".join(texts) if len(texts) == len(content) else content
    if not isinstance(content, str) and not (content is None and message.get("tool_calls")):
        raise SpecError(
            f"a message of prompt {row} has content that is not text, got {reprlib.repr(content)}",
            hint='content is text, or a list of parts such as {"type": "text", "text": "..."}',
        )
    role = message["role"]
    role = "system" if role == "developer" and role not in template else role  # OpenAI's newer name
    return {**message, "role": role, "content": content}


def _read(message: str, item: Any, tokenize: Callable[[], Any], hint: str) -> list[int]:
    """The ids that `tokenize` gives for a prompt. Raises SpecError, beginning with `message`, where it fails."""
    try:
        return list(tokenize()["input_ids"])
    except Exception as error:  # tokenizers and chat templates raise errors of any class
        text = json.dumps(item, ensure_ascii=False, default=str)
        surrogate = next((char for char in text if "\ud800" <= char <= "\udfff"), None)
        reason = one_line(error) if surrogate is None else f"it holds a lone surrogate, {surrogate!a}"
        raise SpecError(f"{message}: {reason}", hint=hint) from error


def _begins_twice(tokenizer: Any, text: str, ids: Sequence[int]) -> bool:
    """Whether a text begins with a beginning-of-text token and the tokenizer added another one."""
    token: str = getattr(tokenizer, "bos_token", None) or ""
    return bool(token) and text.startswith(token) and list(ids[:2]) == [tokenizer.bos_token_id] * 2


def _is_message(value: object) -> bool:
    return (
        isinstance(value, Mapping)
        and isinstance(value.get("role"), str)
        and not value.keys().isdisjoint({"content", "tool_calls"})
    )


def _id_rows(ids: Any, name: str) -> list[list[int]]:
    """Rows of ids from [B, P], or from a list of 1-D tensors, arrays or lists."""
    if isinstance(ids, np.ndarray) and ids.dtype.kind in "iu":
        ids = torch.from_numpy(ids.astype(np.int64))
    if isinstance(ids, Tensor):
        if not len(ids.shape) or not len(ids):
            raise SpecError(f"{name} has no rows, got {list(ids.shape)}", hint=f"{name}=[[5, 6, 7]] holds one row")
        if ids.ndim != 2 or ids.is_floating_point() or ids.dtype == torch.bool:
            raise SpecError(
                f"{name} must be a LongTensor [B, P], got {ids.dtype} {list(ids.shape)}",
                hint="one row of ids is ids[None]; rows of different length go in a list",
            )
        return ids.tolist()
    listed = isinstance(ids, Sequence)
    lists = [row.tolist() if isinstance(row, Tensor | np.ndarray) else row for row in ids] if listed else []
    if not lists or not all(isinstance(row, Sequence) and all(is_whole(i) for i in row) for row in lists):
        raise SpecError(
            f"{name} is neither a LongTensor [B, P] nor a list of rows of whole numbers",
            hint=f"{name}=[[5, 6, 7], [8, 9]] holds two rows",
        )
    return [list(row) for row in lists]


_FORMS = (str, Tensor, Sequence)  # types of a template


def _templates(model: LanguageModel, template: Any, mask: int) -> list[Tensor]:
    """Each template as ids [T], with the mask id at positions to fill."""
    if isinstance(template, Tensor):
        template = template.tolist()
    if isinstance(template, str) or (
        isinstance(template, Sequence) and template and all(i is None or is_whole(i) for i in template)
    ):
        template = [template]
    if not isinstance(template, Sequence) or not template or not all(isinstance(i, _FORMS) for i in template):
        raise SpecError(
            f"template is neither text nor ids, got {type(template).__name__}",
            hint="write the mask token at positions to fill, or None among ids",
        )
    tensors = []
    for i, item in enumerate(template):
        if isinstance(item, str):
            if model.decoding_config.uniform:
                raise SpecError(
                    f"template {i} is text, and {model.name} has no mask token that could mark a gap in it",
                    hint="give ids, with None at positions to fill: template=[30, None, 31]",
                )
            tokenize = partial(_tokenizer(model), item, add_special_tokens=False)
            ids = _read(f"template {i} cannot be read", item, tokenize, "give plain text")
        else:
            row = item.tolist() if isinstance(item, Tensor) else list(item)
            (ids,) = _id_rows([[0 if t is None else t for t in row]], "template")
        canvas = _ids_tensor(model, ids, f"template {i}")
        if not isinstance(item, str):
            canvas[[t is None for t in row]] = mask
        if not (canvas == mask).any():
            token = "None" if model.decoding_config.uniform else repr(mask)
            if model.tokenizer and not model.decoding_config.uniform:
                token = repr(model.tokenizer.convert_ids_to_tokens(mask))
            raise SpecError(f"template {i} has no position to fill", hint=f"write {token} once for each of them")
        tensors.append(canvas)
    return tensors


def _tokenizer(model: LanguageModel) -> Any:
    if model.tokenizer is None:
        raise SpecError(
            f"{model.name} comes without a tokenizer, so it cannot read text",
            hint="pass token ids, model.generate(input_ids=...), or put tokenizer.json next to the weights",
        )
    return model.tokenizer


def _ids_tensor(model: LanguageModel, ids: Sequence[int], what: str) -> Tensor:
    """Ids as a tensor [P]. Raises SpecError where there are none, or one is outside the vocabulary."""
    if not ids:
        raise SpecError(f"{what} is empty", hint="give at least one token")
    bad = next((index for index, i in enumerate(ids) if not 0 <= i < model.vocab_size), None)
    if bad is not None:
        raise SpecError(
            f"{what} has id {ids[bad]} at position {bad}, outside the vocabulary of {model.vocab_size}",
            hint=f"ids lie in 0..{model.vocab_size - 1}",
        )
    return torch.tensor(list(ids), dtype=torch.int64)
