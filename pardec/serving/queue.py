"""Reads prompts one by one, checks them, and makes them rows of a batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from pardec.models.errors import SpecError, did_you_mean
from pardec.samplers.rng import row_seed, row_seeds

from ..io.prompt_files import PER_PROMPT
from ..requests.settings import Settings
from .rows import QueuedRow

if TYPE_CHECKING:
    from ..engine import Engine
    from ..requests.call import Call

_NOT_SHARED = ("input_ids", "label", "prompt_embeds", "num_images", "source", "callback")


class Prompts(Iterator[QueuedRow]):
    """Reads prompts one by one, and checks each when it is read."""

    def __init__(self, model: Engine, prompts: Iterable[Any], arguments: Mapping[str, Any]) -> None:
        if isinstance(prompts, str | Mapping) or not isinstance(prompts, Iterable):
            raise SpecError(
                f"prompts must be an iterable of prompts, got {type(prompts).__name__}",
                hint="for one prompt use generate, or pass a list of one",
            )
        for name in _NOT_SHARED:
            if name in arguments:
                hint = f'give it with each prompt, as {{"{name}": ...}}' if name in PER_PROMPT else f"leave {name} out"
                raise SpecError(f"serve_batch takes no {name}= for all prompts", hint=hint)
        settings = Settings.of(arguments)
        if isinstance(settings.seed, Sequence):
            raise SpecError(
                "seed is one number for all prompts", hint='a prompt has its own as {"prompt": ..., "seed": 7}'
            )
        self.model, self.arguments = model, dict(arguments)
        self._prompts = enumerate(prompts)
        self._samples = settings.num_return_sequences
        self._ready: deque[QueuedRow] = deque()  # further rows of the latest prompt
        self._seed, block = int(settings.seed), model.driver.batch_block(settings)
        self._block = None if block is None else min(block, settings.max_new_tokens)

    def __next__(self) -> QueuedRow:
        if not self._ready:
            index, item = next(self._prompts)
            self._ready.extend(self._read(index, item))
        return self._ready.popleft()

    def _read(self, index: int, item: Any) -> Iterator[QueuedRow]:
        fields = _fields(index, item)
        seed, count = fields.pop("seed", None), self._samples
        if seed is None:
            seeds = [row_seed(self._seed, index * count + sample) for sample in range(count)]
        else:
            seeds = [seed] if count == 1 else list(row_seeds(seed, count))
        try:
            call = self.model.prepare(**{**self.arguments, **fields, "seed": seeds})
        except SpecError as error:
            raise SpecError(f"prompt {index} of serve_batch: {error.message}", hint=error.hint) from error
        for sample in range(count):
            row = call if count == 1 else call.take([sample])
            yield QueuedRow(index, row, _in_blocks(row.request, self._block), sample=sample)


def queued_rows(model: Engine, call: Call, settings: Settings) -> list[QueuedRow]:
    """Splits a call into single rows, which can share batches with rows of other calls, of any length."""
    block = model.driver.batch_block(settings)
    rows = (call.take([row]) for row in range(len(call.seeds)))
    return [QueuedRow(at, row, _in_blocks(row.request, block)) for at, row in enumerate(rows)]


def _in_blocks(request: Any, block: int | None) -> Any:
    """The request with a block length of at least this."""
    return request if block is None else replace(request, block_length=max(request.block_length, block))


def _fields(index: int, item: Any) -> dict[str, Any]:
    """One prompt's fields as arguments of `prepare`."""
    if not isinstance(item, Mapping):
        return _fields(index, {"prompt": item})
    for name in item:
        if name not in PER_PROMPT:
            raise SpecError(
                f"prompt {index} of serve_batch has an unknown field {name!r}{did_you_mean(str(name), PER_PROMPT)}",
                hint=f"a prompt takes {', '.join(PER_PROMPT)}; other settings are for all prompts",
            )
    fields = dict(item)
    if isinstance(fields.get("prompt"), list | tuple) and not _is_chat(fields["prompt"]):
        raise SpecError(f"prompt {index} of serve_batch is a list", hint="each is one text or one conversation")
    if "prompt" in fields and _is_chat(fields["prompt"]):
        fields["prompt"] = [fields["prompt"]]
    if "messages" in fields:
        fields["prompt"] = [fields.pop("messages")]
    if "input_ids" in fields:
        ids = fields["input_ids"]
        fields["input_ids"] = ids if isinstance(ids, torch.Tensor) and ids.ndim == 2 else [ids]
    return fields


def _is_chat(item: Any) -> bool:
    return isinstance(item, Sequence) and not isinstance(item, str) and all(isinstance(one, Mapping) for one in item)
