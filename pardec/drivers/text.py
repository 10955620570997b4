"""The base of the drivers of masked and autoregressive models: requests over ids, and their batches."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from torch import Tensor

from pardec.models.errors import SpecError
from pardec.models.files.token_bytes import special_ids
from pardec.samplers.request import Request
from pardec.samplers.rng import Keyed
from pardec.samplers.traits import Trait

from ..requests import allowed
from ..requests.argument import Takes, is_whole
from ..requests.call import Call
from ..requests.generation_config import rules_of
from ..requests.images import ImageInputs, image_inputs, imaging_for, intersect, size_of
from ..requests.preflight import check_family
from ..requests.prompts import Row, check_length, encode
from ..requests.settings import ARGUMENTS, Settings, repeat_each
from ..requests.stop_strings import StopStrings
from ..requests.stop_strings import read as read_stops
from ..requests.structured.request import structure
from ..requests.tools import Tools, shown, tools_of
from ..serving.running import Loops, TokenBatch
from .base import Driver, seeds_of

if TYPE_CHECKING:
    from pardec.models.model import LanguageModel

    from ..serving.rows import QueuedRow
    from ..serving.running import Decoding, RunningBatch


@dataclass(frozen=True, slots=True)
class TextCall(Call):
    """The checked request of a loop over token ids."""

    request: Request
    response_format: Mapping[str, Any] | None = None
    tools: Tools | None = None
    answers: tuple[int | None, ...] = ()  # the generated positions that each row's result has; none, or None: all

    def generated(self, row: int, canvas: Sequence[int]) -> tuple[list[int], int]:
        """The ids after the prompt, cut after the first end token that was generated or the end of a stop string.

        The count is without that end token, and without fixed tokens of a template; all rates are based on it. `canvas`
        may be padded on the right, or end with the row's last token.
        """
        start = self.request.prompts[row]
        before = self.request.canvases[row][start:].tolist()
        if self.answers:
            before = before[: self.answers[row]]
        tokens = list(canvas[start : start + len(before)])
        fresh = [new != old for new, old in zip(tokens, before, strict=False)]
        ends = (index for index, new in enumerate(fresh) if new and tokens[index] in self.request.stop_ids)
        end = next(ends, len(tokens))
        tokens = tokens[: end + 1]
        ending = self.request.stops[row] if self.request.stops else None
        if ending is not None and (count := ending.first(tokens)) is not None:
            tokens = tokens[:count]
        return tokens, sum(fresh[: min(end, len(tokens))])

    def stops(self, row: int) -> StopStrings | None:
        stops = self.request.stops[row] if self.request.stops else None
        return stops if isinstance(stops, StopStrings) else None

    def batch_key(self, request: Request) -> tuple[Any, ...]:
        return request.kind

    @property
    def lengths(self) -> list[int]:
        return [len(canvas) for canvas in self.request.canvases]

    @property
    def prompts(self) -> tuple[int, ...]:
        return self.request.prompts

    @property
    def stop_ids(self) -> tuple[int, ...]:
        return self.request.stop_ids

    @property
    def constraints(self) -> list[str | None]:
        return allowed.digest(self.request.allowed, self.request.prompts)

    @property
    def settings(self) -> dict[str, Any]:
        """The resolved arguments as JSON values; `allowed` as a short hash per row."""
        request = self.request
        values = {n: getattr(request, n) for n in ("block_length", "absolute", "temperature", "top_k", "top_p", "cfg")}
        new = max(len(canvas) - start for canvas, start in zip(request.canvases, request.prompts, strict=True))
        new = max((count for count in self.answers if count is not None), default=new)
        names = self.constraints
        same = names[0] if len(set(names)) == 1 else names
        values |= {"cfg_interval": request.cfg_interval} if request.conditions else {}
        # Defaults are left out, so that rows saved before these arguments existed count as the same rows.
        others = [each.name for each in ARGUMENTS.values() if each.in_request and each.name != "cfg_interval"]
        values |= {name: value for name in others if name not in values and (value := getattr(request, name))}
        values |= {} if request.size is None else {"size": list(request.size)}
        values |= {"logit_bias": dict(request.logit_bias)} if request.logit_bias else {}
        values |= {} if request.logprobs is None else {"logprobs": request.logprobs}
        values |= {"logprob_ids": list(request.logprob_ids)} if request.logprob_ids else {}
        stops = self.stops(0)
        values |= {"stop": list(stops.texts)} if stops is not None else {}
        values |= {} if self.response_format is None else {"response_format": self.response_format}
        values |= {} if self.tools is None else {"tools": list(self.tools.definitions)}
        negatives = [condition.negative for condition in request.conditions]
        if any(text is not None for text in negatives):
            same_text = len(set(negatives)) == 1
            values |= {"negative_prompt": negatives[0] if same_text else [text or "" for text in negatives]}
        return {"max_new_tokens": new, **values, "stop_ids": list(request.stop_ids), "allowed": same}

    @property
    def shown(self) -> list[str | int | None] | None:
        conditions = self.request.conditions
        return [each.text if each.label is None else each.label for each in conditions] if conditions else None


class TextDriver(Driver, Loops):
    """The driver of a family of language models."""

    network: LanguageModel
    is_masked: ClassVar[bool]  # filled in any order, not from left to right

    @property
    def language_model(self) -> LanguageModel:
        return self.network

    @property
    def takes(self) -> Takes:
        return Takes.of_tokens(masked=self.is_masked, images=self.network.imaging is not None)

    @property
    def mask_id(self) -> int | None:
        return self.network.decoding_config.mask_id

    # --- what its families differ in ---

    @abstractmethod
    def sampler(self, settings: Settings) -> Any:
        """The sampler that runs. Raises SpecError for one that cannot run on the model."""

    @abstractmethod
    def own_fields(self, sampler: Any, settings: Settings, rows: list[Row]) -> dict[str, Any]:
        """The fields of the request that differ between families."""

    # --- what they share ---

    def prepare(self, prompt: Any, arguments: Mapping[str, Any]) -> TextCall:
        model, settings = self.network, Settings.of(arguments)
        images: ImageInputs | None = None
        samples: tuple[int, ...] = ()
        tools: Tools | None = None
        sampler = self.sampler(settings)
        beyond = Trait.LONGER_TEXTS in sampler.traits  # rows may be longer than the checkpoint was made for
        imaging = None if model.imaging is None else imaging_for(model.imaging, settings)
        if imaging is not None:
            images = image_inputs(model, imaging, prompt, settings)
            rows = images.rows
        else:
            check_family(model.name, self.is_masked, settings)
            tools = tools_of(model, settings)
            prompts = encode(
                model,
                prompt,
                settings.input_ids,
                settings.template,
                settings.max_new_tokens,
                beyond=beyond,
                tools=shown(prompt, settings.tools, settings.tool_choice),
                variables=settings.chat_template_kwargs,
            )
            rows = repeat_each(prompts, settings.num_return_sequences)
            samples = tuple(range(settings.num_return_sequences)) * len(prompts)
        if (rules := rules_of(model)) is not None:
            requested, settings = settings, rules.fill(settings, min(len(row.rest) for row in rows))
        stops, special = _stops(model, settings)
        stop_ids = tuple(dict.fromkeys((*_stop_ids(model, settings), *special)))
        structured = structure(model, settings, len(rows), stop_ids, tools)
        if structured is not None:
            rows, stop_ids = structured.filled(rows), () if structured.template is not None else stop_ids
        check_length(model, [len(row.canvas) for row in rows], beyond=beyond)
        seeds = seeds_of(settings, len(rows))
        sets = allowed.read(model, settings.allowed, rows)
        if imaging is not None:
            sets = intersect(imaging.layout, sets, rows, model.vocab_size)
        if rules is not None:
            sets = rules.restrict(sets, rows, requested, stop_ids, model.vocab_size)
        settings.check_shortest(min(len(row.rest) for row in rows))
        request = Request(
            canvases=tuple(row.canvas for row in rows),
            prompts=tuple(len(row.prompt) for row in rows),
            source=settings.source or Keyed(seeds),
            **settings.for_request(),
            conditions=() if images is None else images.conditions,
            prefix=None if images is None else images.prefix,
            size=size_of(settings),
            samples=samples,
            stop_ids=stop_ids,
            stops=() if stops is None else (stops,) * len(rows),
            allowed=sets,
            logit_bias=_logit_bias(model, settings),
            logprobs=_logprobs(model, settings),
            logprob_ids=_logprob_ids(model, settings),
            **self.own_fields(sampler, settings, rows),
        )
        if structured is not None:
            request = structured.hold(request)
        for stage in sampler.stages:
            stage.admit(request, sampler)
        self.check(sampler, request)
        request.check_ends()
        form = None if structured is None else settings.response_format
        answers = tuple(row.answer for row in rows) if any(row.answer is not None for row in rows) else ()
        return TextCall(
            sampler, request, seeds, settings.callback, model.weights_version, imaging, form, tools, answers
        )

    @abstractmethod
    def check(self, sampler: Any, request: Request) -> None:
        """Raises SpecError if the sampler's stages are incompatible with each other, the model or the request."""

    def batch(self, model: Decoding, rows: Sequence[QueuedRow]) -> RunningBatch:
        return TokenBatch(model, self, rows)


def _stop_ids(model: LanguageModel, settings: Settings) -> tuple[int, ...]:
    value = settings.stop_ids
    if value is None:
        fixed = settings.template is not None or model.imaging is not None  # whether the row's length is fixed
        return () if fixed else tuple(model.decoding_config.eos_ids)
    return _ids(model, "stop_ids", value, "stop_ids=[2] stops at token 2; [] never stops")


def _logprobs(model: LanguageModel, settings: Settings) -> int | None:
    """How many of the likeliest tokens are recorded; None if no log-probabilities are recorded."""
    if settings.logprobs is None:
        return None if settings.logprob_ids is None else 0
    if settings.logprobs > model.vocab_size:
        raise SpecError(
            f"logprobs={settings.logprobs} is more than the vocabulary of {model.vocab_size}",
            hint=f"logprobs={model.vocab_size} records the whole distribution",
        )
    return int(settings.logprobs)


def _logit_bias(model: LanguageModel, settings: Settings) -> tuple[tuple[int, float], ...]:
    bias = settings.logit_bias or {}
    _ids(model, "logit_bias", list(bias), "logit_bias={11: -100} takes ids of the model's tokens")
    return tuple(sorted((int(token), float(value)) for token, value in bias.items()))


def _logprob_ids(model: LanguageModel, settings: Settings) -> tuple[int, ...]:
    value = () if settings.logprob_ids is None else settings.logprob_ids
    return _ids(model, "logprob_ids", value, "logprob_ids=[5, 9] records those of tokens 5 and 9")


def _ids(model: LanguageModel, name: str, value: Any, hint: str) -> tuple[int, ...]:
    """A list of token ids from one id or several. Raises SpecError for ids outside the vocabulary."""
    if isinstance(value, Tensor | np.ndarray):
        value = value.tolist()
    several = isinstance(value, Collection) and not isinstance(value, str | bytes | Mapping)
    ids = tuple(value) if several else (value,)
    for i in ids:
        if not is_whole(i) or not 0 <= i < model.vocab_size:
            raise SpecError(
                f"{name} holds {i!r}, which is not an id in the vocabulary of {model.vocab_size}", hint=hint
            )
    return tuple(map(int, ids))


def _stops(model: LanguageModel, settings: Settings) -> tuple[StopStrings | None, tuple[int, ...]]:
    """The stop strings, and the ids of stop strings that are special tokens, which decoded text leaves out."""
    if settings.stop is None:
        return None, ()
    if model.tokenizer is None:
        raise SpecError(
            f"stop is text and {model.name} comes without a tokenizer", hint="stop_ids= takes the ids of end tokens"
        )
    if settings.template is not None:
        raise SpecError(
            "stop cannot be combined with a template, which fixes the length of a row",
            hint="leave out stop or the template",
        )
    special = {model.tokenizer.convert_ids_to_tokens(token): token for token in special_ids(model.tokenizer)}
    texts = read_stops(settings.stop)
    strings = tuple(text for text in texts if text not in special)
    ids = tuple(special[text] for text in texts if text in special)
    return StopStrings(model.tokenizer, strings) if strings else None, ids
