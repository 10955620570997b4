"""Every form a prompt can take, turned into rows of token ids.

Text is encoded by the tokenizer, messages by its chat template; ids are taken as they are. Rows may differ in length.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pardec.models.errors import SpecError, one_line

from .settings import check_count

if TYPE_CHECKING:
    from pardec.models.model import LanguageModel


@dataclass(frozen=True, slots=True)
class Row:
    """One row before decoding: given ids, then what follows, the mask id where a token is to come. Both [.] int64.

    An autoregressive model, which knows no mask, has -1 there.
    """

    prompt: Tensor
    rest: Tensor

    @property
    def canvas(self) -> Tensor:  # [P + T]
        return torch.cat([self.prompt, self.rest])


def rows(model: LanguageModel, prompt: Any, input_ids: Any, template: Any, max_new_tokens: int) -> list[Row]:
    """The rows that `generate` decodes.

    Args:
        prompt: str, list of str, one conversation (list of messages) or a list of conversations.
        input_ids: in place of a prompt, [B, P] or a list of 1-D tensors or lists, which may differ in length.
        template: what stands after the prompt, in place of max_new_tokens masks: text holding the mask token, or ids
            with None or the mask id where a token is to come. One for all rows, or a list with one a row. With a
            template the prompt may be left out.

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
        given = [_checked(model, ids, f"prompt {i}") for i, ids in enumerate(_encode(model, prompt))]
    elif input_ids is not None:
        given = [_checked(model, ids, f"input_ids row {i}") for i, ids in enumerate(_id_rows(input_ids, "input_ids"))]
    else:
        given = [torch.empty(0, dtype=torch.int64)] * len(templates or ())
    for i, ids in enumerate(given):
        if (ids == mask).any():
            at = int((ids == mask).nonzero()[0])
            raise SpecError(
                f"prompt {i} holds the mask token (id {mask}) at position {at}",
                hint="text with gaps to fill goes to template=, given text to the prompt",
            )
    if templates is None:
        check_length(model, [len(ids) + max_new_tokens for ids in given])  # before there is anything of that length
        rest = torch.full((max_new_tokens,), mask)
        return [Row(ids, rest) for ids in given]
    if len(templates) not in (1, len(given)):
        raise SpecError(
            f"{len(templates)} templates for {len(given)} prompts", hint="give one template, or one for each prompt"
        )
    return [Row(ids, templates[i if len(templates) > 1 else 0]) for i, ids in enumerate(given)]


def check_length(model: LanguageModel, lengths: list[int]) -> None:
    """Refuses rows longer than the model has positions."""
    most = min(filter(None, (model.max_positions, model.limit)), default=None)
    if most is not None and max(lengths) > most:
        row = lengths.index(max(lengths))
        raise SpecError(
            f"row {row} needs {lengths[row]} positions and {model.name} has {most}",
            hint="shorten the prompt or ask for fewer new tokens",
        )


def open_id(model: LanguageModel) -> int:
    """What stands where a token is to come: the mask id, or -1 for a model that has none."""
    if not model.decoding_config.masked:
        return -1
    assert model.decoding_config.mask_id is not None, "a masked model has one"
    return model.decoding_config.mask_id


def _encode(model: LanguageModel, prompt: Any) -> list[list[int]]:
    if isinstance(prompt, str):
        return _encode(model, [prompt])
    if isinstance(prompt, Tensor) or not isinstance(prompt, Sequence):
        raise SpecError(
            f"a prompt is text, a list of texts or chat messages, got {type(prompt).__name__}",
            hint="token ids go to input_ids=",
        )
    if not prompt:
        raise SpecError("the list of prompts is empty", hint="give at least one prompt")
    check_count("prompt", prompt)
    if all(isinstance(item, Mapping) for item in prompt):
        prompt = [prompt]
    elif all(_is_whole(item) for item in prompt):
        raise SpecError("the prompt is a list of whole numbers", hint="token ids go to input_ids=, as [[1, 2, 3]]")
    tokenizer = _tokenizer(model)
    return [_encode_one(model, tokenizer, i, item) for i, item in enumerate(prompt)]


def _encode_one(model: LanguageModel, tokenizer: Any, row: int, item: Any) -> list[int]:
    if isinstance(item, str):
        if not item.strip():
            raise SpecError(f"prompt {row} is empty", hint="give at least one word")
        return _read(f"prompt {row} cannot be read", item, lambda: tokenizer(item), "give plain text")
    if not isinstance(item, Sequence) or not item or not all(_is_message(message) for message in item):
        raise SpecError(
            f"prompt {row} is neither text nor a list of messages",
            hint='a message is {"role": "user", "content": "..."}',
        )
    if not tokenizer.chat_template:
        raise SpecError(f"{model.name} has no chat template", hint="pass the prompt as plain text")
    given: Any = {"add_generation_prompt": True, "tokenize": True, "return_dict": True}
    wrong = f"the chat template of {model.name} does not take prompt {row}"
    hint = "it may want no system message, or turns of user and assistant by turns"
    return _read(wrong, item, lambda: tokenizer.apply_chat_template(list(item), **given), hint)


def _read(wrong: str, item: Any, read: Callable[[], Any], hint: str) -> list[int]:
    """The ids of what `read` makes of a prompt. Raises SpecError where it fails, as templates and tokenizers may."""
    try:
        return list(read()["input_ids"])
    except Exception as error:  # any of the tokenizer classes, and what a template raises
        half = next((sign for sign in str(item) if "\ud800" <= sign <= "\udfff"), None)
        why = one_line(error) if half is None else f"it holds half a character, {half!a}"
        raise SpecError(f"{wrong}: {why}", hint=hint) from error


def _is_message(value: object) -> bool:
    return isinstance(value, Mapping) and isinstance(value.get("role"), str) and "content" in value


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _id_rows(ids: Any, name: str) -> list[list[int]]:
    """Rows of ids from [B, P], or from a list of 1-D tensors or lists."""
    if isinstance(ids, Tensor):
        if not len(ids.shape) or not len(ids):
            raise SpecError(f"{name} has no rows, got {list(ids.shape)}", hint=f"{name}=[[5, 6, 7]] holds one row")
        if ids.ndim != 2 or ids.is_floating_point() or ids.dtype == torch.bool:
            raise SpecError(
                f"{name} is a LongTensor [B, P], got {ids.dtype} {list(ids.shape)}",
                hint="one row of ids is ids[None]; rows of different length go in a list",
            )
        return ids.tolist()
    lists = [row.tolist() if isinstance(row, Tensor) else row for row in ids] if isinstance(ids, Sequence) else []
    good = [isinstance(row, Sequence) and all(_is_whole(i) for i in row) for row in lists]
    if not good or not all(good):
        raise SpecError(
            f"{name} is neither a LongTensor [B, P] nor a list of rows of whole numbers",
            hint=f"{name}=[[5, 6, 7], [8, 9]] holds two rows",
        )
    return [list(row) for row in lists]


_FORMS = (str, Tensor, Sequence)  # of a template


def _templates(model: LanguageModel, template: Any, mask: int) -> list[Tensor]:
    """Each template as ids [T], the mask id where a token is to come."""
    if isinstance(template, Tensor):
        template = template.tolist()
    if isinstance(template, str) or (
        isinstance(template, Sequence) and template and all(i is None or _is_whole(i) for i in template)
    ):
        template = [template]
    if not isinstance(template, Sequence) or not template or not all(isinstance(i, _FORMS) for i in template):
        raise SpecError(
            f"template is neither text nor ids, got {type(template).__name__}",
            hint="write the mask token where text is to come, or None among ids",
        )
    made = []
    for i, item in enumerate(template):
        if isinstance(item, str):
            encode = partial(_tokenizer(model), item, add_special_tokens=False)
            ids = _read(f"template {i} cannot be read", item, encode, "give plain text")
        else:
            row = [mask if t is None else t for t in (item.tolist() if isinstance(item, Tensor) else item)]
            (ids,) = _id_rows([row], "template")
        canvas = _checked(model, ids, f"template {i}")
        if not (canvas == mask).any():
            token = model.tokenizer.convert_ids_to_tokens(mask) if model.tokenizer else mask
            raise SpecError(
                f"template {i} has no position to fill", hint=f"write {token!r} once for each token that is to come"
            )
        made.append(canvas)
    return made


def _tokenizer(model: LanguageModel) -> Any:
    if model.tokenizer is None:
        raise SpecError(
            f"{model.name} comes without a tokenizer, so it cannot read text",
            hint="pass token ids, model.generate(input_ids=...), or put tokenizer.json beside the weights",
        )
    return model.tokenizer


def _checked(model: LanguageModel, ids: Sequence[int], what: str) -> Tensor:
    """Ids as a tensor [P], none missing and all inside the vocabulary."""
    if not ids:
        raise SpecError(f"{what} is empty", hint="give at least one token")
    bad = next((at for at, i in enumerate(ids) if not 0 <= i < model.vocab_size), None)
    if bad is not None:
        raise SpecError(
            f"{what} has id {ids[bad]} at position {bad}, outside the vocabulary of {model.vocab_size}",
            hint=f"ids lie in 0..{model.vocab_size - 1}",
        )
    return torch.tensor(list(ids), dtype=torch.int64)
