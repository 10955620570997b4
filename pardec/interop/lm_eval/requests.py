"""lm-eval's strings and dictionaries, read: the arguments of the model, and those of one generation."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pardec.models.errors import SpecError, did_you_mean

DEFAULT_TOKENS = 256  # as lm-eval's own models
_OWN = (
    *("pretrained", "batch_size", "device", "max_length", "seed", "likelihood", "mc_num", "check_greedy"),
    *("add_bos_token", "prefix_token_id"),
)
_LOAD = ("dtype", "device_map", "revision", "offline", "mask_id", "block", "quantize")
_GENERATE = (
    *("sampler", "max_new_tokens", "min_new_tokens", "block_length", "temperature", "top_k", "top_p", "min_p"),
    *("repetition_penalty", "cfg", "block_align"),
)
_LENGTH = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")  # the first that is there counts
_PASSED = (
    *("block_length", "cfg", "sampler", "seed", "top_k", "top_p", "min_p", "repetition_penalty", "min_new_tokens"),
    "stop",
)
_SHORTEST = ("min_gen_toks", "min_tokens")  # other names of min_new_tokens
_IDLE = {"num_beams": 1, "use_cache": True, "n": 1}  # asks for nothing else than is done
_log = logging.getLogger("lm_eval.pardec")  # lm-eval's handler and level
_warned: set[str] = set()


def split_arguments(text: str) -> dict[str, str]:
    """`name=value,name=value`; what stands in quotes may hold commas.

    >>> split_arguments("pretrained=tiny-dream,sampler='wino:draft=0.6,verify=0.9@dual',seed=1")
    {'pretrained': 'tiny-dream', 'sampler': 'wino:draft=0.6,verify=0.9@dual', 'seed': '1'}
    """
    reader = shlex.shlex(text, posix=True, punctuation_chars="")
    reader.whitespace, reader.whitespace_split, reader.commenters, reader.escape = ",", True, "", ""
    try:
        items = [item.strip() for item in reader]
    except ValueError as error:
        raise SpecError(f"model_args: {error}: {text}", hint="""sampler="wino:draft=0.6,verify=0.9\"""") from error
    wrong = next((item for item in items if "=" not in item), None)
    if wrong is not None:
        raise SpecError(f"model_args: {wrong!r} is not name=value", hint="pretrained=tiny-dream,sampler=threshold")
    return dict((part.strip() for part in item.split("=", 1)) for item in items)  # type: ignore[misc]


def separate_defaults(arguments: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arguments of `pardec.load`, and those of `Model.generate`; SpecError names one that is neither's."""
    for name in arguments:
        if name not in _LOAD + _GENERATE:
            raise SpecError(
                f"the lm-eval model takes no argument {name!r}{did_you_mean(name, _OWN + _LOAD + _GENERATE)}",
                hint="""a sampler with commas stands in quotes: 'sampler="wino:draft=0.6,verify=0.9"'""",
            )
    given = {name: value for name, value in arguments.items() if value is not None}
    return {n: given[n] for n in given if n in _LOAD}, {n: given[n] for n in given if n in _GENERATE}


@dataclass(frozen=True, slots=True)
class Generation:
    """One request's generation, resolved."""

    arguments: dict[str, Any]  # of `Model.generate`
    max_length: int | None = None  # of prompt and answer together; wins over max_new_tokens, as in transformers
    no_repeat_ngram_size: int = 0  # runs of so many tokens stand once in prompt and answer; 0 is off; AR models only

    def after(self, prompt: int) -> dict[str, Any]:
        """The arguments behind a prompt of so many tokens. Raises SpecError where `max_length` leaves no room."""
        if self.max_length is None:
            return self.arguments
        if self.max_length <= prompt:
            raise SpecError(
                f"max_length={self.max_length} leaves nothing to generate behind a prompt of {prompt} tokens",
                hint="--gen_kwargs max_gen_toks=128 counts the generated tokens alone",
            )
        return _of_length(self.arguments, self.max_length - prompt)


def generation(asked: Mapping[str, Any], defaults: Mapping[str, Any]) -> Generation:
    """What a request asks, over the defaults that the model was made with.

    Args:
        asked: lm-eval's generation arguments. `do_sample: false` is temperature 0; true without a temperature takes
            the default one, or 1. What pardec has no counterpart for is left out, with one warning a name.
        defaults: arguments of `Model.generate`.
    """
    rest = dict(asked)
    until = rest.pop("until", None) or ()
    longest, ngram = rest.pop("max_length", None), rest.pop("no_repeat_ngram_size", None)
    for name in _SHORTEST:
        if (value := rest.pop(name, None)) is not None:
            rest.setdefault("min_new_tokens", value)
    lengths = [value for name in _LENGTH if (value := rest.pop(name, None)) is not None]
    sample, warmth = rest.pop("do_sample", None), rest.pop("temperature", None)
    made = dict(defaults)
    if not str(made.get("sampler")).startswith("preset:"):  # a preset brings its own length
        made.setdefault("max_new_tokens", DEFAULT_TOKENS)
    if lengths:
        made = _of_length(made, int(lengths[0]))
    if sample is False:
        made["temperature"] = 0.0
    elif warmth is not None:
        made["temperature"] = float(warmth)
    elif sample:
        made["temperature"] = made.get("temperature") or 1.0
    for name in _PASSED:
        if (value := rest.pop(name, None)) is not None:
            made[name] = value
    if (made.get("top_k") or 0) < 1:  # 0 and -1 are how others say "off"
        made.pop("top_k", None)
    stop = tuple(filter(None, (until,) if isinstance(until, str) else until))
    if stop:
        made["stop"] = [*stop, *([made["stop"]] if isinstance(made.get("stop"), str) else made.get("stop") or ())]
    for name, value in rest.items():
        if value is not None and _IDLE.get(name, object()) != value and name not in _warned:
            _warned.add(name)
            _log.warning("pardec has no generation argument %s; %s=%r is left out", name, name, value)
    return Generation(made, None if longest is None else int(longest), int(ngram or 0))


def _of_length(arguments: dict[str, Any], new: int) -> dict[str, Any]:
    """The arguments with so many new tokens, and no block that is longer."""
    made = {**arguments, "max_new_tokens": new}
    if made.get("block_length") is not None:
        made["block_length"] = min(made["block_length"], new)
    return made
