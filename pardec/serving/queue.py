"""Prompts as rows that can stand in one batch: read one by one, checked, and laid together."""

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

from ..requests.continuous import VectorCall
from ..requests.settings import Settings
from ..requests.text import BLOCK, Call

if TYPE_CHECKING:
    from ..engine import Engine

OWN = (
    *("prompt", "messages", "input_ids", "label", "prompt_embeds"),
    *("seed", "max_new_tokens", "stop", "template", "allowed"),
)
_SHARED = (
    *("block_length", "absolute", "temperature", "top_k", "top_p", "min_p", "repetition_penalty"),
    *("min_new_tokens", "cfg", "cfg_interval", "stop_ids"),
)
_NOT_SHARED = ("input_ids", "label", "prompt_embeds", "num_images", "source", "callback")


@dataclass(frozen=True, slots=True, eq=False)
class Waiting:
    """One row, checked: the call that decodes it alone, and the request as it is decoded beside others."""

    index: int
    call: Call | VectorCall
    request: Any
    began: float = 0.0
    sample: int = 0  # which of the prompt's return sequences it is

    @property
    def kind(self) -> tuple[Any, ...]:
        """Rows of one kind can stand in one batch."""
        if isinstance(self.call, VectorCall):
            return (self.request.temperature, self.request.cfg)
        r = self.request
        return (*(getattr(r, name) for name in _SHARED), bool(r.conditions), r.allowed is None)


class Prompts(Iterator[Waiting]):
    """Each prompt, checked when its turn comes."""

    def __init__(self, model: Engine, prompts: Iterable[Any], arguments: Mapping[str, Any]) -> None:
        if isinstance(prompts, str | Mapping) or not isinstance(prompts, Iterable):
            raise SpecError(
                f"prompts are an iterable of prompts, got {type(prompts).__name__}",
                hint="one prompt goes to generate; a list of one is served, too",
            )
        for name in _NOT_SHARED:
            if name in arguments:
                own = name in OWN
                raise SpecError(
                    f"serve_batch takes no {name}= for all prompts",
                    hint=f'give it with each, as {{"{name}": ...}}' if own else f"leave {name} out",
                )
        settings = Settings.of(arguments)
        if isinstance(settings.seed, Sequence):
            raise SpecError(
                "seed is one number for all prompts", hint='a prompt has its own as {"prompt": ..., "seed": 7}'
            )
        self.model, self.arguments = model, dict(arguments)
        self._each = enumerate(prompts)
        self._samples = settings.num_return_sequences
        self._ready: deque[Waiting] = deque()  # more rows of the prompt read last
        self._seed, self._block = int(settings.seed), min(BLOCK, settings.max_new_tokens)
        decoding_config = None if model.family != "masked" else model.language_model.decoding_config
        self._blocks_grow = (  # a row that ends before its block does stands in a longer one just as well
            decoding_config is not None
            and decoding_config.attention != "block-causal"
            and settings.block_length is None
            and settings.block_align == "prompt"
        )

    def __next__(self) -> Waiting:
        if not self._ready:
            index, item = next(self._each)
            self._ready.extend(self._read(index, item))
        return self._ready.popleft()

    def _read(self, index: int, item: Any) -> Iterator[Waiting]:
        given = _fields(index, item)
        seed, count = given.pop("seed", None), self._samples
        if seed is None:
            seeds = [row_seed(self._seed, index * count + sample) for sample in range(count)]
        else:
            seeds = [seed] if count == 1 else list(row_seeds(seed, count))
        try:
            call: Any = self.model.prepare(**{**self.arguments, **given, "seed": seeds})
        except SpecError as error:
            raise SpecError(f"prompt {index} of those served: {error.message}", hint=error.hint) from error
        for sample in range(count):
            one = call if count == 1 else call.take([sample])
            request = one.request
            if self._blocks_grow:
                request = replace(request, block_length=max(request.block_length, self._block))
            yield Waiting(index, one, request, sample=sample)


def _fields(index: int, item: Any) -> dict[str, Any]:
    """What one prompt says, as arguments of `prepare`."""
    if not isinstance(item, Mapping):
        return _fields(index, {"prompt": item})
    for name in item:
        if name not in OWN:
            raise SpecError(
                f"prompt {index} of those served has a field {name!r}{did_you_mean(str(name), OWN)}",
                hint=f"it takes {', '.join(OWN)}; all else is for all prompts",
            )
    given = dict(item)
    if isinstance(given.get("prompt"), list | tuple) and not _is_chat(given["prompt"]):
        raise SpecError(f"prompt {index} of those served is a list", hint="each is one text or one conversation")
    if "prompt" in given and _is_chat(given["prompt"]):
        given["prompt"] = [given["prompt"]]
    if "messages" in given:
        given["prompt"] = [given.pop("messages")]
    if "input_ids" in given:
        ids = given["input_ids"]
        given["input_ids"] = ids if isinstance(ids, torch.Tensor) and ids.ndim == 2 else [ids]
    return given


def together(rows: Sequence[Waiting]) -> Request:
    """The requests of these rows as one."""
    first: Request = rows[0].request
    each: list[Request] = [row.request for row in rows]
    return replace(
        first,
        canvases=tuple(canvas for one in each for canvas in one.canvases),
        prompts=tuple(start for one in each for start in one.prompts),
        source=JoinableSource([row.call.seeds[0] for row in rows]),
        conditions=tuple(condition for one in each for condition in one.conditions),
        prefix=_prefixes([one.prefix for one in each if one.prefix is not None]),
        allowed=_allowed([one.allowed for one in each if one.allowed is not None]),
        stops=tuple(one.stops[0] if one.stops else None for one in each),
    )


def _prefixes(each: list[Prefix]) -> Prefix | None:
    if not each:
        return None
    unconds = [one.uncond for one in each if one.uncond is not None]
    conds = tuple(states for one in each for states in one.cond)
    return Prefix(conds, tuple(states for one in unconds for states in one) if unconds else None)


def _allowed(each: list[Allowed]) -> Allowed | None:
    """Set 0, which allows everything, is one for all."""
    if not each:
        return None
    sets, at = [each[0].sets[:1]], []
    for one in each:
        before = sum(map(len, sets)) - 1
        at += [torch.where(places > 0, places + before, 0) for places in one.at]
        sets.append(one.sets[1:])
    return Allowed(torch.cat(sets), tuple(at))


def _is_chat(item: Any) -> bool:
    return isinstance(item, Sequence) and not isinstance(item, str) and all(isinstance(one, Mapping) for one in item)
