"""Prompts as rows of a batch: read one by one, checked, and their requests merged."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from pardec.models.errors import SpecError, did_you_mean
from pardec.models.images.conditioned import Prefix
from pardec.samplers.request import Allowed, Request
from pardec.samplers.rng import JoinableSource, row_seed, row_seeds

from ..io.prompt_files import PER_PROMPT
from ..requests.settings import Settings

if TYPE_CHECKING:
    from ..drivers import Call
    from ..engine import Engine

_NOT_SHARED = ("input_ids", "label", "prompt_embeds", "num_images", "source", "callback")


@dataclass(frozen=True, slots=True, eq=False)
class QueuedRow:
    """One queued row, checked: the call that decodes it alone, and its request within a batch."""

    index: int
    call: Call
    request: Any
    sample: int = 0  # index among the prompt's return sequences

    @property
    def kind(self) -> tuple[Any, ...]:
        """Rows of one kind can share a batch."""
        return self.call.batch_key(self.request)


class Prompts(Iterator[QueuedRow]):
    """Reads prompts one by one, and checks each when it is read."""

    def __init__(self, model: Engine, prompts: Iterable[Any], arguments: Mapping[str, Any]) -> None:
        if isinstance(prompts, str | Mapping) or not isinstance(prompts, Iterable):
            raise SpecError(
                f"prompts are an iterable of prompts, got {type(prompts).__name__}",
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
    """The rows of a call one by one, so that they share batches with those of other calls, of any length."""
    block = model.driver.batch_block(settings)
    rows = (call.take([row]) for row in range(len(call.seeds)))
    return [QueuedRow(at, row, _in_blocks(row.request, block)) for at, row in enumerate(rows)]


def _in_blocks(request: Any, block: int | None) -> Any:
    """The request in blocks of at least this length."""
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


def merge_requests(rows: Sequence[QueuedRow]) -> Request:
    """One request for all of these rows."""
    requests: list[Request] = [row.request for row in rows]
    return replace(
        requests[0],
        share_prompt=False,  # other rows are to join these
        canvases=tuple(canvas for request in requests for canvas in request.canvases),
        prompts=tuple(start for request in requests for start in request.prompts),
        source=JoinableSource([row.call.seeds[0] for row in rows]),
        samples=tuple(request.samples[0] if request.samples else 0 for request in requests),
        conditions=tuple(condition for request in requests for condition in request.conditions),
        prefix=_merge_prefixes([request.prefix for request in requests if request.prefix is not None]),
        allowed=_merge_allowed(requests),
        stops=tuple(request.stops[0] if request.stops else None for request in requests),
        constrained_spans=tuple(
            request.constrained_spans[0] if request.constrained_spans else () for request in requests
        ),
        grammars=tuple(request.grammars[0] if request.grammars else None for request in requests),
    )


def _merge_prefixes(prefixes: list[Prefix]) -> Prefix | None:
    if not prefixes:
        return None
    unconds = [prefix.uncond for prefix in prefixes if prefix.uncond is not None]
    conds = tuple(states for prefix in prefixes for states in prefix.cond)
    return Prefix(conds, tuple(states for uncond in unconds for states in uncond) if unconds else None)


def _merge_allowed(requests: list[Request]) -> Allowed | None:
    """Concatenates the sets, but for set 0, which allows everything and is kept once."""
    some = next((request.allowed for request in requests if request.allowed is not None), None)
    if some is None:
        return None
    sets, at = [some.sets[:1]], []
    for request in requests:
        if request.allowed is None:
            at += [torch.zeros(len(canvas), dtype=torch.int64) for canvas in request.canvases]
            continue
        offset = sum(map(len, sets)) - 1
        at += [torch.where(indices > 0, indices + offset, 0) for indices in request.allowed.at]
        sets.append(request.allowed.sets[1:])
    return Allowed(torch.cat(sets), tuple(at))


def _is_chat(item: Any) -> bool:
    return isinstance(item, Sequence) and not isinstance(item, str) and all(isinstance(one, Mapping) for one in item)
