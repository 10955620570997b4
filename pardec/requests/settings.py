"""The arguments of `generate` and `stream`: their names, defaults and ranges, checked before anything runs."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar

from pardec.models.errors import SpecError, did_you_mean
from pardec.samplers.limits import LEAST, MAX_SCALE, RANGE, divides

from .other_names import WORDS
from .stop_strings import read as read_stops
from .structured.forms import form_of

if TYPE_CHECKING:
    from torch import Tensor

    from pardec.samplers.continuous.contracts import ContinuousSampler
    from pardec.samplers.events import Event
    from pardec.samplers.masked.contracts import MaskedSampler
    from pardec.samplers.rng import Source
    from pardec.samplers.scales.contracts import ScaleSampler
    from pardec.samplers.spec import Policy, Spec
    from pardec.samplers.speculative.contracts import SpeculativeSampler


_T = TypeVar("_T")

MAX_NEW_TOKENS = 64
# Larger values are refused before anything of their size is allocated.
LARGEST: Mapping[str, int] = {"max_new_tokens": 2**24, "num_images": 2**16, "num_return_sequences": 2**16}
MOST_ROWS = 2**20
MOST_PIXELS = 2**14  # of an image's side
CLASS_IMAGES: Mapping[str, Any] = {"temperature": 1.0}  # other defaults for continuous tokens and token maps


class Arguments(TypedDict, total=False):
    """What `generate` and `stream` take besides the prompt; `Settings` has the defaults and the meaning."""

    input_ids: Tensor | Sequence[Tensor | Sequence[int]] | None
    sampler: str | Spec | Policy | MaskedSampler | SpeculativeSampler | ContinuousSampler | ScaleSampler | None
    max_new_tokens: int
    min_new_tokens: int | None
    block_length: int | None
    temperature: float
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None
    cfg: float | None
    cfg_interval: int | None
    seed: int | Sequence[int]
    template: str | Sequence[Any] | Tensor | None
    allowed: Any
    logits_processor: Sequence[Callable[[Tensor, Tensor], Tensor]] | None
    response_format: Mapping[str, Any] | None
    stop: str | Sequence[str] | None
    stop_ids: int | Sequence[int] | None
    block_align: Literal["prompt", "absolute"]
    label: int | Sequence[int] | None
    num_images: int
    size: Sequence[int] | None
    num_return_sequences: int
    prompt_embeds: Any
    negative_prompt: str | Sequence[str] | None
    source: Source | None
    logprobs: int | None
    logprob_ids: Sequence[int] | None
    callback: Callable[[Event], object] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One checked set of arguments."""

    input_ids: Any = None
    sampler: str | Spec | Policy | MaskedSampler | SpeculativeSampler | ContinuousSampler | ScaleSampler | None = None
    max_new_tokens: int = MAX_NEW_TOKENS
    min_new_tokens: int | None = None  # how many positions after the prompt take no end token
    block_length: int | None = None  # None: min(32, max_new_tokens), or the family's own block
    temperature: float = 0.0  # for continuous tokens and token maps 1.0; samplers.limits has the range
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None  # leaves out what is less likely than min_p times the likeliest
    repetition_penalty: float | None = None  # makes tokens that the row holds already less likely; 1 is off
    cfg: float | None = None  # l_u + cfg * (l_c - l_u); None is off; of token maps, t at the last one
    cfg_interval: int | None = None  # for images: guidance for the first cfg_interval + 2 tokens only
    seed: int | Sequence[int] = 0  # a list gives each row its own
    template: Any = None
    allowed: Any = None  # which tokens each position may take; pardec.requests.allowed has the forms
    logits_processor: Any = None  # transformers' processors, run on each token's own history; AR models only
    response_format: Any = None  # OpenAI's forms, or a JSON schema that every answer keeps to; text only
    stop: Any = None  # a text or texts that end a row; its text is cut before them
    stop_ids: Any = None  # None: the model's end tokens; [] never stops
    block_align: str = "prompt"  # where the block grid begins: "prompt" or "absolute"
    label: Any = None  # for image models: a class, or one a row; with continuous tokens and token maps, -1 is none
    num_images: int = 1  # of each prompt or label
    size: Sequence[int] | None = None  # for images: height and width in pixels; None: the model's own
    num_return_sequences: int = 1  # for text: rows of each prompt
    prompt_embeds: Any = None  # for image models: the text encoder's output for captions, [B, n, D] or a list
    negative_prompt: Any = None  # for captions: what guidance steers away from; one, or one a prompt
    source: Any = None  # recorded uniforms in place of a seed
    logprobs: int | None = None  # record each token's log-probability, and those of so many likeliest ones
    logprob_ids: Any = None  # and those of these ids; alone, it records the token's own too
    callback: Callable[[Event], object] | None = None  # called with every event

    def __post_init__(self) -> None:
        _whole("max_new_tokens", self.max_new_tokens, 1)
        _whole("block_length", self.block_length, 1, optional=True)
        _whole("top_k", self.top_k, 1, optional=True)
        _whole("min_new_tokens", self.min_new_tokens, 0, optional=True)
        _whole("num_images", self.num_images, 1)
        _whole("num_return_sequences", self.num_return_sequences, 1)
        _whole("cfg_interval", self.cfg_interval, 0, optional=True)
        if self.size is not None and not _is_size(self.size):
            raise SpecError(
                f"size is a height and a width in pixels, from 1 to {MOST_PIXELS} each, got {self.size!r}",
                hint="size=(256, 256), or leave it out for the model's own",
            )
        _whole("logprobs", self.logprobs, 0, optional=True)
        _number("temperature", self.temperature, "at least 0", lambda x: x >= 0)
        _number("temperature", self.temperature, RANGE, divides)
        _number("cfg", self.cfg, "at least 0", lambda x: x >= 0, optional=True)
        _number("cfg", self.cfg, f"at most {MAX_SCALE:g}", lambda x: x <= MAX_SCALE, optional=True)
        _number("top_p", self.top_p, "above 0 and at most 1", lambda x: 0 < x <= 1, optional=True)
        _number("min_p", self.min_p, "at least 0 and at most 1", lambda x: 0 <= x <= 1, optional=True)
        bounds = f"from {LEAST:g} to {MAX_SCALE:g}"
        _number("repetition_penalty", self.repetition_penalty, bounds, lambda x: LEAST <= x <= MAX_SCALE, optional=True)
        if self.stop is not None:
            read_stops(self.stop)
        if self.block_align not in ("prompt", "absolute"):
            raise SpecError(
                f'block_align is "prompt" or "absolute", got {self.block_align!r}',
                hint='"prompt" lays the block grid from the end of the prompt, "absolute" from position 0',
            )
        for name in ("input_ids", "label", "seed", "stop_ids", "template", "prompt_embeds", "logprob_ids"):
            check_count(name, getattr(self, name))
        for seed in self.seed if isinstance(self.seed, Sequence) else [self.seed]:
            _whole("seed", seed, None)
        if self.source is not None and not callable(getattr(self.source, "uniform", None)):
            raise SpecError(
                f"source has no method uniform, got {type(self.source).__name__}",
                hint="pass an object like pardec.samplers.rng.Keyed, or leave source out",
            )
        if self.response_format is not None:
            form_of(self.response_format)
        processors = self.logits_processor
        if processors is not None and not (isinstance(processors, Sequence) and all(map(callable, processors))):
            raise SpecError(
                f"logits_processor is a list of processors, got {processors!r}",
                hint="logits_processor=[RepetitionPenaltyLogitsProcessor(1.1)], from transformers",
            )
        if self.callback is not None and not callable(self.callback):
            raise SpecError(
                f"callback cannot be called, got {type(self.callback).__name__}",
                hint="pass a function that takes one event",
            )

    @classmethod
    def of(cls, arguments: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> Settings:
        """Reads arguments; those left out come from a preset, then from `defaults`, then from the class."""
        known = [field.name for field in fields(cls)]
        for name in arguments:
            if name not in known:
                opening = f"generate takes no argument {name!r}"
                if name in WORDS:
                    own = WORDS[name].split("=")[0]  # many hints begin with pardec's name of the argument
                    raise SpecError(opening + did_you_mean(own, [own] if own in known else []), hint=WORDS[name])
                raise SpecError(opening + did_you_mean(name, known), hint=f"it takes {', '.join(known)}")
        settings = cls(**{**(defaults or {}), **arguments})
        if isinstance(settings.sampler, str) and settings.sampler.startswith("preset:"):
            from pardec.samplers.presets import preset

            chosen = preset(settings.sampler)
            if chosen.template and settings.template is None:
                raise SpecError(
                    f"{settings.sampler} needs a template: it gives {chosen.template}",
                    hint=f"pass template=, or without one decode with another sampler than {chosen.spec!r}",
                )
            added: dict[str, Any] = {key: value for key, value in chosen.arguments.items() if key not in arguments}
            settings = replace(settings, sampler=chosen.spec, **added)
            if "block_length" in added:  # the caller's canvas may be shorter than the preset's blocks
                settings = replace(settings, block_length=min(added["block_length"], settings.max_new_tokens))
        return settings

    @classmethod
    def signature(cls) -> inspect.Signature:
        """The signature that `help(model.generate)` shows."""
        kind = inspect.Parameter
        return inspect.Signature(
            [
                kind("self", kind.POSITIONAL_OR_KEYWORD),
                kind("prompt", kind.POSITIONAL_OR_KEYWORD, default=None),
                *(kind(field.name, kind.KEYWORD_ONLY, default=field.default) for field in fields(cls)),
            ]
        )


def ignored_filters(arguments: Mapping[str, Any], settings: Mapping[str, Any]) -> str | None:
    """What a call says of filters that were passed where no distribution is sampled: no token follows from them.

    Args:
        arguments: as they were passed.
        settings: the call's, as resolved.
    """
    off = {"top_k": (None,), "top_p": (None, 1), "min_p": (None, 0)}  # values that filter nothing
    names = [name for name, values in off.items() if arguments.get(name) not in values]
    if not names or settings.get("temperature") != 0:
        return None
    shown = " and ".join(f"{name}={arguments[name]}" for name in names)
    verb = "leaves" if len(names) == 1 else "leave"
    return f"{shown} {verb} the likeliest token as it is, and temperature=0 takes that one; temperature=0.7 samples"


def check_count(name: str, value: Any) -> None:
    """Refuses a sequence of more entries than one request may have."""
    if isinstance(value, Sequence) and len(value) > MOST_ROWS:
        raise SpecError(
            f"{name} has {len(value)} entries, and one call takes at most {MOST_ROWS}", hint="make several calls"
        )


def repeat_each(items: Sequence[_T], count: int) -> list[_T]:
    """Each item `count` times in a row: the rows of `num_return_sequences` and `num_images`."""
    return [item for item in items for _ in range(count)]


def is_whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def check_whole(name: str, value: Any, least: int | None, *, hint: str) -> None:
    """Raises SpecError unless `value` is a whole number of at least `least`; True and 1.5 are none."""
    rule = "a whole number" if least is None else f"a whole number of at least {least}"
    if not is_whole(value) or (least is not None and value < least):
        raise SpecError(f"{name} is {rule}, got {value!r}", hint=hint)


def _whole(name: str, value: Any, least: int | None, *, optional: bool = False) -> None:
    if optional and value is None:
        return
    if is_whole(value) and value > LARGEST.get(name, value):
        raise SpecError(f"{name} is at most {LARGEST[name]}, got {value!r}", hint=_example(name))
    check_whole(name, value, least, hint=_example(name))


def is_number(value: object) -> bool:
    """Whether it is a finite number; True is none."""
    try:
        return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # a whole number beyond all floating-point ones
        return False


def _is_size(value: object) -> bool:
    """Whether it is a height and a width."""
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != 2:
        return False
    return all(is_whole(side) and 1 <= side <= MOST_PIXELS for side in value)


def _number(name: str, value: Any, rule: str, holds: Callable[[float], bool], *, optional: bool = False) -> None:
    if optional and value is None:
        return
    if not is_number(value) or not holds(float(value)):
        raise SpecError(f"{name} must be {rule}, got {value!r}", hint=_example(name))


def _example(name: str) -> str:
    return {
        "max_new_tokens": "max_new_tokens=64 asks for 64 tokens after the prompt",
        "block_length": "block_length=32, or leave it out for min(32, max_new_tokens)",
        "temperature": "temperature=0 takes the likeliest token, 1 samples from the model's own distribution",
        "top_k": "top_k=50 keeps the 50 likeliest tokens; leave it out to keep all",
        "top_p": "top_p=0.9 keeps the likeliest tokens that hold 90% of the probability; leave it out to keep all",
        "cfg": "cfg=1 is the model without guidance, larger is stronger; leave it out to turn guidance off",
        "seed": "seed=0, or seed=[0, 1] with one seed a row",
        "logprobs": "logprobs=0 records each token's own, logprobs=5 also the five likeliest; leave it out for none",
        "cfg_interval": "cfg_interval=100 guides the first 102 tokens of an image; leave it out to guide all",
        "num_images": "num_images=4 draws four images of each prompt",
        "num_return_sequences": "num_return_sequences=4 gives four answers to each prompt",
        "min_new_tokens": "min_new_tokens=8 has no end token among the first 8; leave it out to let a row end anywhere",
        "min_p": "min_p=0.05 leaves out what is less than 0.05 times as likely as the likeliest; 0 keeps all",
        "repetition_penalty": "repetition_penalty=1.1 makes tokens that the row holds already less likely; 1 is off",
    }[name]
