"""Parses lm-eval's `model_args` and the arguments of each of its generation requests."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pardec.models.errors import SpecError, did_you_mean

from ...requests.settings import ARGUMENTS

DEFAULT_TOKENS = 256  # as lm-eval's own models
_MODEL = (
    *("pretrained", "batch_size", "device", "max_length", "seed", "likelihood", "mc_num", "check_greedy"),
    *("add_bos_token", "prefix_token_id"),
)
_LOAD = (
    *("dtype", "device_map", "revision", "offline", "mask_id", "block", "quantize", "packed", "activations"),
    "adapter",
)
_GENERATE = tuple(name for name, each in ARGUMENTS.items() if each.lm_eval)
_LENGTH = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")  # the first one present is used
_NEUTRAL = ("use_cache", "length_penalty", "early_stopping", "pad_token_id")  # change no text without beams
_OFF = {  # values that ask for nothing
    **dict.fromkeys(("num_beams", "num_beam_groups", "num_return_sequences", "n", "best_of", "typical_p"), 1),
    **dict.fromkeys(("min_length", "frequency_penalty", "presence_penalty", "ignore_eos"), 0),
    "skip_special_tokens": True,
}


def split_arguments(text: str) -> dict[str, str]:
    """Parses `name=value,name=value`; quoted values may contain commas.

    >>> split_arguments("pretrained=tiny-dream,sampler='wino:draft=0.6,verify=0.9@dual',seed=1")
    {'pretrained': 'tiny-dream', 'sampler': 'wino:draft=0.6,verify=0.9@dual', 'seed': '1'}
    """
    reader = shlex.shlex(text, posix=True, punctuation_chars="")
    reader.whitespace, reader.whitespace_split, reader.commenters, reader.escape = ",", True, "", ""
    try:
        items = [item.strip() for item in reader]
    except ValueError as error:
        raise SpecError(f"model_args: {error}: {text}", hint="""sampler="wino:draft=0.6,verify=0.9\"""") from error
    malformed = next((item for item in items if "=" not in item), None)
    if malformed is not None:
        raise SpecError(f"model_args: {malformed!r} is not name=value", hint="pretrained=tiny-dream,sampler=threshold")
    return dict((part.strip() for part in item.split("=", 1)) for item in items)  # type: ignore[misc]


def separate_defaults(arguments: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the arguments that `pardec.load` takes and those that `Model.generate` takes; SpecError for others."""
    for name in arguments:
        if name not in _LOAD + _GENERATE:
            raise SpecError(
                f"the lm-eval model takes no argument {name!r}{did_you_mean(name, _MODEL + _LOAD + _GENERATE)}",
                hint="""put a sampler with commas into quotes: 'sampler="wino:draft=0.6,verify=0.9"'""",
            )
    values = {name: value for name, value in arguments.items() if value is not None}
    return {n: values[n] for n in values if n in _LOAD}, {n: values[n] for n in values if n in _GENERATE}


@dataclass(frozen=True, slots=True)
class Generation:
    """One request's generation, resolved."""

    arguments: dict[str, Any]  # arguments of `Model.generate`
    max_length: int | None = None  # tokens of prompt and answer together; overrides max_new_tokens, as in transformers
    no_repeat_ngram_size: int = 0  # n-grams of this size are not repeated; 0 is off; AR models only

    def after(self, prompt: int) -> dict[str, Any]:
        """The arguments for a prompt of `prompt` tokens. Raises SpecError if `max_length` leaves no room."""
        if self.max_length is None:
            return self.arguments
        if self.max_length <= prompt:
            raise SpecError(
                f"max_length={self.max_length} leaves no room to generate after a prompt of {prompt} tokens",
                hint="--gen_kwargs max_gen_toks=128 counts the generated tokens alone",
            )
        return _with_length(self.arguments, self.max_length - prompt)


def generation(request: Mapping[str, Any], defaults: Mapping[str, Any]) -> Generation:
    """Resolves a request, with the model's defaults.

    Args:
        request: lm-eval's generation arguments. `do_sample: false` is temperature 0; true without a temperature takes
            the default one, or 1.
        defaults: arguments of `Model.generate`.

    Raises SpecError for an argument that would change the text and has no counterpart in pardec.
    """
    rest = dict(request)
    until = rest.pop("until", None) or ()
    max_length, ngram = rest.pop("max_length", None), rest.pop("no_repeat_ngram_size", None)
    lengths = [value for name in _LENGTH if (value := rest.pop(name, None)) is not None]
    sample, temperature = rest.pop("do_sample", None), rest.pop("temperature", None)
    arguments = dict(defaults)
    if not str(arguments.get("sampler")).startswith("preset:"):  # a preset has its own length
        arguments.setdefault("max_new_tokens", DEFAULT_TOKENS)
    if lengths:
        arguments = _with_length(arguments, int(lengths[0]))
    if sample is False:
        arguments["temperature"] = 0.0
    elif temperature is not None:
        arguments["temperature"] = float(temperature)
    elif sample:
        arguments["temperature"] = arguments.get("temperature") or 1.0
    for each in map(ARGUMENTS.__getitem__, (*_GENERATE, "seed", "stop")):
        given = [value for name in (each.name, *each.aliases) if (value := rest.pop(name, None)) is not None]
        if given:
            arguments[each.name] = given[0]
        if each.off_elsewhere and arguments.get(each.name) in each.off_elsewhere:
            del arguments[each.name]
    stop = tuple(filter(None, (until,) if isinstance(until, str) else until))
    if stop:
        arguments["stop"] = [
            *stop,
            *([arguments["stop"]] if isinstance(arguments.get("stop"), str) else arguments.get("stop") or ()),
        ]
    for name, value in rest.items():
        if value is not None and name not in _NEUTRAL and _OFF.get(name, object()) != value:
            near = did_you_mean(name, (*_LENGTH, *_GENERATE, "temperature", "until", "do_sample", "seed", "stop"))
            raise SpecError(
                f"pardec has no generation argument {name!r}{near}, and {name}={value!r} may change the text",
                hint=f"--gen_kwargs {name}={_OFF[name]} turns it off" if name in _OFF else "leave it out",
            )
    return Generation(arguments, None if max_length is None else int(max_length), int(ngram or 0))


def _with_length(arguments: dict[str, Any], new: int) -> dict[str, Any]:
    """The arguments with `new` new tokens, and blocks that are no longer than that."""
    changed = {**arguments, "max_new_tokens": new}
    if changed.get("block_length") is not None:
        changed["block_length"] = min(changed["block_length"], new)
    return changed
