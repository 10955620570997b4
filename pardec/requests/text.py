"""One call of `generate`, checked and ready for the loop: all that can be refused is refused here."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from pardec.models.errors import SpecError
from pardec.models.files.token_bytes import special_ids
from pardec.samplers import registry
from pardec.samplers.continuous.contracts import ContinuousSampler
from pardec.samplers.masked import build as masked
from pardec.samplers.masked.contracts import MaskedSampler
from pardec.samplers.request import Allowed, Request
from pardec.samplers.rng import Keyed, row_seeds
from pardec.samplers.scales.contracts import ScaleSampler
from pardec.samplers.spec import Part, Policy, Spec, parse
from pardec.samplers.speculative.contracts import SpeculativeSampler

from . import allowed, corpus, draft_models
from .generation_config import rules_of
from .image_layout import intersect
from .images import ImageInputs, image_inputs, imaging_for, size_of
from .preflight import check_block, check_family
from .prompts import Row, check_length, encode
from .settings import ARGUMENTS, Settings, repeat_each
from .stop_strings import StopStrings
from .stop_strings import read as read_stops
from .structured.request import structure

if TYPE_CHECKING:
    from pardec.models.images.contracts import CodeImaging
    from pardec.models.model import LanguageModel
    from pardec.samplers.events import Event

BLOCK = 32  # the default block length, where the request is not shorter


@dataclass(frozen=True, slots=True)
class Call:
    """The input of a loop, and the seed of each row."""

    sampler: MaskedSampler | SpeculativeSampler
    request: Request
    seeds: tuple[int, ...]
    callback: Callable[[Event], object] | None
    weights_version: int = 0  # of the model when it was prepared
    response_format: Mapping[str, Any] | None = None
    imaging: CodeImaging | None = None  # of images, for the request's size

    def generated(self, row: int, canvas: Sequence[int]) -> tuple[list[int], int]:
        """The tokens that row `row` generated, and how many of them count.

        Args:
            canvas: its final ids, right-padded or not; it may end with the row's last token.

        Returns:
            The ids behind the prompt, cut after the first end token that was generated or the token that completes a
            stop string; and the number of generated ones without that end token, which all rates are based on. Fixed
            tokens of a template are not counted.
        """
        start = self.request.prompts[row]
        before = self.request.canvases[row][start:].tolist()
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
        """The stop strings of a row; None where it has none."""
        stops = self.request.stops[row] if self.request.stops else None
        return stops if isinstance(stops, StopStrings) else None

    def take(self, rows: Sequence[int]) -> Call:
        """The same request with these rows only; each keeps its seed, so it gives the same tokens."""
        seeds = tuple(self.seeds[row] for row in rows)
        request = replace(
            self.request,
            canvases=tuple(self.request.canvases[row] for row in rows),
            prompts=tuple(self.request.prompts[row] for row in rows),
            conditions=tuple(self.request.conditions[row] for row in rows) if self.request.conditions else (),
            prefix=None if self.request.prefix is None else self.request.prefix.take(rows),
            source=Keyed(seeds) if isinstance(self.request.source, Keyed) else self.request.source,
            allowed=None if self.request.allowed is None else self.request.allowed.take(rows),
            samples=tuple(self.request.samples[row] for row in rows) if self.request.samples else (),
            stops=tuple(self.request.stops[row] for row in rows) if self.request.stops else (),
            constrained_spans=tuple(self.request.constrained_spans[row] for row in rows)
            if self.request.constrained_spans
            else (),
            grammars=tuple(self.request.grammars[row] for row in rows) if self.request.grammars else (),
        )
        return replace(self, request=request, seeds=seeds)

    def seeded(self, seeds: Sequence[int]) -> Call:
        """The same request with other seeds, one a row."""
        return replace(self, seeds=tuple(seeds), request=replace(self.request, source=Keyed(tuple(seeds))))

    @property
    def lengths(self) -> list[int]:
        """Per row, how many tokens its canvas has."""
        return [len(canvas) for canvas in self.request.canvases]

    @property
    def prompts(self) -> tuple[int, ...]:
        """Per row, how many tokens precede the generated region."""
        return self.request.prompts

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """End tokens."""
        return self.request.stop_ids

    @property
    def constraints(self) -> list[str | None]:
        """A short hash per row of its `allowed`; equal hashes, equal constraints."""
        return allowed.digest(self.request.allowed, self.request.prompts)

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments as resolved, as JSON can hold them; `allowed` by the short hash of each row."""
        request = self.request
        values = {n: getattr(request, n) for n in ("block_length", "absolute", "temperature", "top_k", "top_p", "cfg")}
        new = max(len(canvas) - start for canvas, start in zip(request.canvases, request.prompts, strict=True))
        names = self.constraints
        same = names[0] if len(set(names)) == 1 else names
        values |= {"cfg_interval": request.cfg_interval} if request.conditions else {}
        # Defaults are left out, so that rows saved before these arguments existed count as the same rows.
        others = [each.name for each in ARGUMENTS.values() if each.in_request and each.name != "cfg_interval"]
        values |= {name: value for name in others if name not in values and (value := getattr(request, name))}
        values |= {} if request.size is None else {"size": list(request.size)}
        values |= {} if request.logprobs is None else {"logprobs": request.logprobs}
        values |= {"logprob_ids": list(request.logprob_ids)} if request.logprob_ids else {}
        stops = self.stops(0)
        values |= {"stop": list(stops.texts)} if stops is not None else {}
        values |= {} if self.response_format is None else {"response_format": self.response_format}
        negatives = [condition.negative for condition in request.conditions]
        if any(text is not None for text in negatives):
            same_text = len(set(negatives)) == 1
            values |= {"negative_prompt": negatives[0] if same_text else [text or "" for text in negatives]}
        return {"max_new_tokens": new, **values, "stop_ids": list(request.stop_ids), "allowed": same}

    @property
    def shown(self) -> list[str | int | None] | None:
        """Per row of images, its caption or class, None for features; None for text."""
        conditions = self.request.conditions
        return [each.text if each.label is None else each.label for each in conditions] if conditions else None


def prepare(model: LanguageModel, prompt: Any, settings: Settings) -> Call:
    """Reads the prompt and resolves every argument for this model; SpecError names what cannot work."""
    images: ImageInputs | None = None
    samples: tuple[int, ...] = ()
    sampler = _sampler(model, settings)
    beyond = isinstance(sampler, SpeculativeSampler) and sampler.cache is not None and sampler.cache.beyond
    imaging = None if model.imaging is None else imaging_for(model.imaging, settings)
    if imaging is not None:
        images = image_inputs(model, imaging, prompt, settings)
        rows = images.rows
    else:
        check_family(model.name, model.decoding_config.masked, settings)
        prompts = encode(model, prompt, settings.input_ids, settings.template, settings.max_new_tokens, beyond=beyond)
        rows = repeat_each(prompts, settings.num_return_sequences)
        samples = tuple(range(settings.num_return_sequences)) * len(prompts)
    if (rules := rules_of(model)) is not None:
        requested, settings = settings, rules.fill(settings, min(len(row.rest) for row in rows))
    stops, special = _stops(model, settings)
    stop_ids = tuple(dict.fromkeys((*_stop_ids(model, settings), *special)))
    structured = structure(model, settings, len(rows), stop_ids)
    if structured is not None:
        rows, stop_ids = structured.filled(rows), () if structured.template is not None else stop_ids
    check_length(model, [len(row.canvas) for row in rows], beyond=beyond)
    seeds = seeds_of(settings, len(rows))
    block_causal = model.decoding_config.attention == "block-causal"
    settings.check_shortest(min(len(row.rest) for row in rows))
    request = Request(
        canvases=tuple(row.canvas for row in rows),
        prompts=tuple(len(row.prompt) for row in rows),
        block_length=_block_length(model, settings, rows),
        source=settings.source or Keyed(seeds),
        absolute=block_causal or settings.block_align == "absolute",
        **settings.for_request(),
        conditions=() if images is None else images.conditions,
        prefix=None if images is None else images.prefix,
        size=size_of(settings),
        samples=samples,
        corpus=corpus.read(sampler, model),
        draft_model=draft_models.for_text(sampler, model),
        stop_ids=stop_ids,
        stops=() if stops is None else (stops,) * len(rows),
        allowed=_allowed(model, imaging, settings, rows)
        if rules is None
        else rules.restrict(allowed.read(model, settings.allowed, rows), rows, requested, stop_ids, model.vocab_size),
        processors=tuple(settings.logits_processor or ()),
        logprobs=_logprobs(model, settings),
        logprob_ids=_logprob_ids(model, settings),
    )
    if structured is not None:
        request = structured.hold(request)
    for stage in sampler.stages:
        stage.admit(request, sampler)
    request.check_ends()
    form = None if structured is None else settings.response_format
    return Call(sampler, request, seeds, settings.callback, model.weights_version, form, imaging)


def _allowed(model: LanguageModel, imaging: CodeImaging | None, settings: Settings, rows: list[Row]) -> Allowed | None:
    sets = allowed.read(model, settings.allowed, rows)
    return sets if imaging is None else intersect(imaging.layout, sets, rows, model.vocab_size)


def seeds_of(settings: Settings, count: int) -> tuple[int, ...]:
    """One seed a row. Raises SpecError where a list has another length."""
    if not isinstance(settings.seed, Sequence):
        return row_seeds(int(settings.seed), count)
    if len(settings.seed) != count:
        raise SpecError(f"{len(settings.seed)} seeds for {count} rows", hint="give one seed, or one a row")
    return tuple(int(seed) for seed in settings.seed)


def _sampler(model: LanguageModel, settings: Settings) -> MaskedSampler | SpeculativeSampler:
    """The sampler that runs; a masked spec without a cache gets the family's exact one, if there is one."""
    value, attention = settings.sampler, model.decoding_config.attention
    if not model.decoding_config.masked:
        speculative = registry.resolve(value, "ar", sampling=settings.temperature > 0)
        assert isinstance(speculative, SpeculativeSampler), "an autoregressive model"
        if settings.temperature > 0 and getattr(speculative.accept, "argmax", False):
            raise SpecError(
                f"{speculative.spec.parts[-1].name!r} accepts the likeliest tokens only, and "
                f"temperature={settings.temperature} is for sampling",
                hint="accept with speculative or match, or leave temperature out",
            )
        return speculative
    if isinstance(value, SpeculativeSampler | ContinuousSampler | ScaleSampler):
        family = registry.FAMILY_LABELS[registry.family_of_sampler(value)]
        raise SpecError(f"{value.spec} is for {family} and {model.name} is masked", hint="name another sampler")
    sampler = registry.resolve(value, "masked")
    exact = _EXACT_CACHES.get(attention)
    if exact is not None and not isinstance(value, MaskedSampler) and _names_no_cache(value):
        with suppress(SpecError):  # where a stage does not work with that cache, the resolved cache stays
            sampler = registry.resolve(replace(sampler.spec, cache=exact), "masked")
    needs = sampler.cache.attention or attention
    if attention == "causal-prefix" and sampler.cache.attention is None:
        raise SpecError(
            f"the cache {sampler.cache.registered[0]!r} does not store finished text causally, as {model.name} wants",
            hint="leave the cache out, or write @causal",
        )
    if needs != attention:
        assert sampler.spec.cache is not None, "a resolved spec names its cache"
        raise SpecError(
            f"the cache {sampler.spec.cache.name!r} is for {needs} models and {model.name} is {attention}",
            hint='"pardec list samplers --stage cache" shows the others',
        )
    return masked.fit(sampler, model)


def with_own_cache(model: LanguageModel, sampler: MaskedSampler) -> MaskedSampler:
    """`sampler`, whose spec names no cache, with the one that a causal-prefix family has to have."""
    exact = _EXACT_CACHES.get(model.decoding_config.attention)
    if exact is None or model.decoding_config.attention != "causal-prefix":
        return sampler
    cache = registry.resolve(Spec((Part("threshold"),), exact), "masked")
    changed = replace(sampler, cache=cache.cache, spec=replace(sampler.spec, cache=cache.spec.cache))
    for stage in (changed.cache, *([] if changed.block is None else [changed.block])):
        stage.check(changed)
    return changed


_EXACT_CACHES: dict[str, Part] = {
    "block-causal": Part("block"),
    "windowed-causal": Part("window", (("slide", "false"),)),
    "causal-prefix": Part("causal"),
}


def _names_no_cache(sampler: str | Spec | Policy | None) -> bool:
    return sampler is None or parse(sampler).cache is None


def _stop_ids(model: LanguageModel, settings: Settings) -> tuple[int, ...]:
    value = settings.stop_ids
    if value is None:
        fixed = settings.template is not None or model.imaging is not None  # in length
        return () if fixed else tuple(model.decoding_config.eos_ids)
    return _ids(model, "stop_ids", value, "stop_ids=[2] stops at token 2; [] never stops")


def _logprobs(model: LanguageModel, settings: Settings) -> int | None:
    """How many of the likeliest tokens are recorded; None where no log-probabilities are."""
    if settings.logprobs is None:
        return None if settings.logprob_ids is None else 0
    if settings.logprobs > model.vocab_size:
        raise SpecError(
            f"logprobs={settings.logprobs} is more than the vocabulary of {model.vocab_size}",
            hint=f"logprobs={model.vocab_size} records the whole distribution",
        )
    return int(settings.logprobs)


def _logprob_ids(model: LanguageModel, settings: Settings) -> tuple[int, ...]:
    value = () if settings.logprob_ids is None else settings.logprob_ids
    return _ids(model, "logprob_ids", value, "logprob_ids=[5, 9] records those of tokens 5 and 9")


def _ids(model: LanguageModel, name: str, value: Any, hint: str) -> tuple[int, ...]:
    """One id of the vocabulary or several."""
    if isinstance(value, Tensor | np.ndarray):
        value = value.tolist()
    ids = tuple(value) if isinstance(value, Collection) else (value,)
    for i in ids:
        if not isinstance(i, int) or isinstance(i, bool) or not 0 <= i < model.vocab_size:
            raise SpecError(f"{name} holds {i!r}, which is no id of the vocabulary of {model.vocab_size}", hint=hint)
    return ids


def _stops(model: LanguageModel, settings: Settings) -> tuple[StopStrings | None, tuple[int, ...]]:
    """The stop strings, and the ids of those that are special tokens, which decoded text leaves out."""
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


def _block_length(model: LanguageModel, settings: Settings, rows: list[Row]) -> int:
    longest = max(len(row.rest) for row in rows)
    if not model.decoding_config.masked:
        return 1
    fixed = model.decoding_config.block if model.decoding_config.attention == "block-causal" else None
    check_block(model.name, settings.block_length, longest, fixed)
    usual = longest if model.imaging is not None else usual_block(model)  # an image is one block
    return fixed or settings.block_length or min(usual, longest)


def usual_block(model: LanguageModel) -> int:
    """The width of a block where the request names none and is not shorter: the family's own, or BLOCK."""
    return model.decoding_config.block or BLOCK
