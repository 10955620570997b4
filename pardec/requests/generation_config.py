"""Applies the rules of generation_config.json for the tokens of an AR model, as transformers' generate does.

Arguments of the call have priority. Settings of sampling and of length are left to the call, whose defaults are
pardec's own: temperature 0 and 64 tokens. Other keys that would change tokens raise an error with their name. Without
that file transformers takes the same keys from config.json. Masked models have no such rules; image models, for which
transformers would apply them to the codes, are refused with them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pardec.models.errors import ModelError, SpecError
from pardec.samplers.request import Allowed

from .argument import is_number, is_whole
from .settings import Settings

if TYPE_CHECKING:
    from pardec.models.model import LanguageModel

    from .prompts import Row

_FILE = "generation_config.json"
_CORRECT = "correct it in a copy of the checkpoint"
# Keys that are followed, and the values that each can have.
FOLLOWED: Mapping[str, str] = {
    "suppress_tokens": "a list of ids",
    "begin_suppress_tokens": "a list of ids",
    "repetition_penalty": "a number above 0",
    "no_repeat_ngram_size": "a whole number",
    "bad_words_ids": "a list of lists of ids",
    "sequence_bias": "a list of pairs of ids and a number",
    "forced_bos_token_id": "an id",
    "forced_eos_token_id": "an id or a list of them",
    "min_length": "a whole number",
    "min_new_tokens": "a whole number",
    "stop_strings": "a text or a list of texts",
}
# Refused, unless they are one of these values (or null).
REFUSED: Mapping[str, tuple[Any, ...]] = {
    "guidance_scale": (1,),
    "encoder_repetition_penalty": (1,),
    "encoder_no_repeat_ngram_size": (0,),
    "exponential_decay_length_penalty": (),
    "watermarking_config": (),
    "num_beams": (1,),
    "num_beam_groups": (1,),
    "penalty_alpha": (0,),
    "dola_layers": (),
    "constraints": (),
    "force_words_ids": (),
    "token_healing": (False,),
}
# Refused for the codes of images, unless they are one of these values (or null).
IMAGES_REFUSED: Mapping[str, tuple[Any, ...]] = {
    **{key: values for key, values in REFUSED.items() if key != "guidance_scale"},
    **dict.fromkeys(("suppress_tokens", "begin_suppress_tokens", "bad_words_ids", "sequence_bias"), ([],)),
    "repetition_penalty": (1,),
    "no_repeat_ngram_size": (0,),
}
# Filters refused for the codes of images where they are sampled, unless they are one of these values (or null).
IMAGE_FILTERS: Mapping[str, tuple[Any, ...]] = {
    "typical_p": (1,), "top_h": (), "epsilon_cutoff": (0,), "eta_cutoff": (0,)
}  # fmt: skip
# Left to the call, or without an effect on which tokens are decoded.
LEFT: tuple[str, ...] = (
    *("do_sample", "temperature", "top_k", "top_p", "min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff"),
    *("max_length", "max_new_tokens", "max_time", "num_return_sequences", "early_stopping", "length_penalty"),
    *("diversity_penalty", "renormalize_logits", "remove_invalid_values", "use_cache", "use_mtp", "low_memory"),
    *("cache_implementation", "cache_config", "max_cache_len", "prefill_chunk_size", "compile_config"),
    *("disable_compile", "continuous_batching_config", "output_attentions", "output_hidden_states", "output_scores"),
    *("output_logits", "return_dict_in_generate", "pad_token_id", "bos_token_id", "eos_token_id"),
    *("decoder_start_token_id", "is_assistant", "num_assistant_tokens", "num_assistant_tokens_schedule"),
    *("assistant_confidence_threshold", "prompt_lookup_num_tokens", "max_matching_ngram_size"),
    *("assistant_early_exit", "assistant_lookbehind", "target_lookbehind", "assistant_ensemble_weight"),
    *("speculation_type", "transformers_version"),
)


@dataclass(frozen=True, slots=True, eq=False)
class Rules:
    """The rules of one checkpoint for the tokens that it generates."""

    suppress: tuple[int, ...] = ()  # never decoded
    begin_suppress: tuple[int, ...] = ()  # not decoded first
    first: int | None = None  # the token forced after a prompt of one token
    last: tuple[int, ...] = ()  # forced at the end of a row without an end token; the lowest of several
    repetition_penalty: float | None = None
    min_length: int = 0  # least tokens before an end token, the prompt's included
    min_new_tokens: int | None = None
    ngram: int = 0  # sequences of this length occur once
    bad_words: Any = None
    bias: Any = None
    stop: Any = None
    ends: tuple[int, ...] = ()
    built: dict[float | None, tuple[Callable[[Tensor, Tensor], Tensor], ...]] = field(default_factory=dict)

    def fill(self, settings: Settings, longest: int) -> Settings:
        """Adds these rules to settings that the call leaves open, for rows of up to `longest` new tokens."""
        penalty = self.repetition_penalty if settings.repetition_penalty is None else settings.repetition_penalty
        changes: dict[str, Any] = {"repetition_penalty": penalty}
        if settings.min_new_tokens is None and self.min_new_tokens is not None:
            changes["min_new_tokens"] = min(self.min_new_tokens, longest)
        if settings.stop is None and settings.template is None:
            changes["stop"] = self.stop
        if own := self._processors(None if penalty in (None, 1) else penalty):
            changes["logits_processor"] = [*own, *(settings.logits_processor or ())]
            if self.bias is not None:  # comes before the penalty, which is then one of these
                changes["repetition_penalty"] = None
        return replace(settings, **changes)

    def restrict(
        self, allowed: Allowed | None, rows: Sequence[Row], settings: Settings, stop_ids: Sequence[int], vocabulary: int
    ) -> Allowed | None:
        """The intersection of `allowed` with the tokens that these rules leave. Raises SpecError if it is empty."""
        least = self.min_length if settings.min_new_tokens is None else 0
        if not (self.suppress or self.begin_suppress or self.last or self.first is not None or least):
            return allowed
        whole = torch.ones(vocabulary, dtype=torch.bool)
        own: dict[tuple[bool, bool, bool, bool], Tensor] = {}  # suppressed at the beginning, no end, first, last
        outer = whole[None] if allowed is None else allowed.sets.cpu()
        sets, indices, at = [whole], dict[tuple[int, tuple[bool, ...]], int](), []
        for number, row in enumerate(rows):
            prompt, count = len(row.prompt), len(row.rest)
            before = torch.zeros(prompt + count, dtype=torch.int64) if allowed is None else allowed.at[number].cpu()
            after = torch.zeros_like(before)
            begins = 0 if prompt > 1 or self.first is None else 1
            for index in range(count):
                kind = (
                    index == begins and bool(self.begin_suppress),
                    prompt + index < least,
                    index == 0 and prompt == 1 and self.first is not None,
                    index == count - 1 and bool(self.last),
                )
                if kind not in own:
                    own[kind] = self._left(whole, stop_ids, *kind)
                key = int(before[prompt + index]), kind
                if key not in indices:
                    both = own[kind] & outer[key[0]]
                    if not both.any():
                        raise SpecError(
                            f"{_FILE} allows no token at index {index} of row {number}",
                            hint="allow other tokens, or take its keys (suppress_tokens, forced_eos_token_id) out",
                        )
                    if bool(both.all()):
                        indices[key] = 0
                    else:
                        indices[key] = len(sets)
                        sets.append(both)
                after[prompt + index] = indices[key]
            at.append(after)
        return Allowed(torch.stack(sets).to("cpu" if allowed is None else allowed.sets.device), tuple(at))

    def _left(self, whole: Tensor, ends: Sequence[int], begin: bool, early: bool, first: bool, last: bool) -> Tensor:
        left = whole.clone()
        left[list(self.suppress)] = False
        if begin:
            left[list(self.begin_suppress)] = False
        if early:
            left[list(ends)] = False
        for forced, ids in ((first, (self.first,)), (last, self.last)):
            if forced:
                left = torch.zeros_like(whole)
                left[[token for token in ids if token is not None]] = True
        return left

    def _processors(self, penalty: float | None) -> tuple[Callable[[Tensor, Tensor], Tensor], ...]:
        """transformers' processors, the same objects for every request, which lets rows share a batch."""
        if self.bias is None and self.bad_words is None and not self.ngram:
            return ()
        key = penalty if self.bias is not None else None
        if key not in self.built:
            import transformers as hf

            chosen: list[Any] = []
            if self.bias is not None:
                chosen.append(hf.SequenceBiasLogitsProcessor(self.bias))
                chosen += [] if penalty is None else [hf.RepetitionPenaltyLogitsProcessor(penalty)]
            if self.ngram:
                chosen.append(hf.NoRepeatNGramLogitsProcessor(self.ngram))
            if self.bad_words is not None:
                chosen.append(hf.NoBadWordsLogitsProcessor(self.bad_words, list(self.ends) or None))
            self.built[key] = tuple(chosen)
        return self.built[key]


def rules_of(model: LanguageModel) -> Rules | None:
    """The rules of a checkpoint; None if it has none. Raises ModelError for unsupported or malformed rules."""
    if model.decoding_config.masked or not model.generation:
        return None
    if "rules" not in model.prepared:
        _refuse(model, REFUSED if model.imaging is None else IMAGES_REFUSED)
        if model.imaging is not None and model.generation.get("do_sample") is not False:
            _refuse(model, IMAGE_FILTERS)
        model.prepared["rules"] = _read(model) if model.imaging is None else None
    rules: Rules | None = model.prepared["rules"]
    return rules


def _refuse(model: LanguageModel, keys: Mapping[str, tuple[Any, ...]]) -> None:
    """Raises ModelError, with the key, for one that changes tokens."""
    for key, plain in keys.items():
        value = model.generation.get(key)
        if value is not None and value not in plain:
            raise ModelError(
                f"{model.name} sets {key} to {str(value)[:80]} in its {_FILE}: it changes tokens and is not supported",
                f"take {key} out of {_FILE} in a copy of the checkpoint to decode without it",
            )


def _read(model: LanguageModel) -> Rules | None:
    chosen = {key: value for key in FOLLOWED if (value := model.generation.get(key)) is not None}
    if not chosen:
        return None
    size = model.vocab_size

    def fail(key: str) -> ModelError:
        value = str(chosen[key])[:80]
        return ModelError(
            f"{model.name} sets {key} to {value} in its {_FILE}, and it has to be {FOLLOWED[key]}", _CORRECT
        )

    def ids(key: str) -> tuple[int, ...]:
        value = chosen.get(key, [])
        value = [value] if is_whole(value) and not key.endswith("_tokens") else value
        if not isinstance(value, list) or not all(map(is_whole, value)):
            raise fail(key)
        return tuple(each for each in value if 0 <= each < size)  # transformers passes over the others

    def whole(key: str) -> int:
        value = chosen.get(key, 0)
        if not is_whole(value) or value < 0:
            raise fail(key)
        return int(value)

    penalty = chosen.get("repetition_penalty")
    if penalty is not None and (not is_number(penalty) or penalty <= 0):
        raise fail("repetition_penalty")
    bad, bias = chosen.get("bad_words_ids"), chosen.get("sequence_bias")
    if bad is not None and not (isinstance(bad, list) and bad and all(_is_sequence(each, size) for each in bad)):
        raise fail("bad_words_ids")
    if bias is not None and not (isinstance(bias, list) and bias and all(_is_bias(each, size) for each in bias)):
        raise fail("sequence_bias")
    stop = chosen.get("stop_strings")
    if stop is not None and not (
        isinstance(stop, str) or (isinstance(stop, list) and stop and all(isinstance(each, str) for each in stop))
    ):
        raise fail("stop_strings")
    ends = model.decoding_config.eos_ids
    singles = [[end] for end in ends]
    bad = None if bad is None else [each for each in bad if each not in singles] or None
    first = ids("forced_bos_token_id")
    return Rules(
        suppress=ids("suppress_tokens"),
        begin_suppress=ids("begin_suppress_tokens"),
        first=first[0] if first else None,
        last=tuple(sorted(ids("forced_eos_token_id"))[:1]),
        repetition_penalty=None if penalty is None else float(penalty),
        min_length=whole("min_length") if "min_new_tokens" not in chosen else 0,
        min_new_tokens=whole("min_new_tokens") or None,
        ngram=whole("no_repeat_ngram_size"),
        bad_words=bad,
        bias=bias,
        stop=stop,
        ends=ends,
    )


_DIFFUSION: Mapping[str, float] = {
    "max_denoising_steps": 48,
    "t_max": 0.8,
    "t_min": 0.4,
    "stability_threshold": 1,
    "confidence_threshold": 0.005,
    "entropy_bound": 0.1,
}
_ENTROPY = {"_cls_name": "EntropyBoundSamplerConfig"}


def with_published_sampler(model: LanguageModel, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Adds the published rule if no sampler is named: for windows after causal text, and for random canvases.

    The latter sample, with the numbers of generation_config.json. Raises ModelError for one that it cannot have.
    """
    config = model.decoding_config
    if arguments.get("sampler") is not None:
        return arguments
    if config.attention == "causal-prefix" and config.shift:
        return {**arguments, "sampler": "preset:sdlm"}
    if not config.uniform:
        return arguments
    if config.attention == "bidirectional":
        spec, temperature = _uniform_noise(model)
        return {"temperature": temperature, **arguments, "sampler": spec}
    inner = model.generation.get("sampler_config")
    inner = {} if inner is None else inner
    if (
        not isinstance(inner, dict)
        or not inner.items() <= {**_ENTROPY, "entropy_bound": inner.get("entropy_bound")}.items()
    ):
        raise ModelError(
            f"{model.name} sets sampler_config to {str(inner)[:80]} in its {_FILE}, and only an entropy_bound of"
            f" {_ENTROPY['_cls_name']} is supported",
            "name the sampler to decode without it: preset:diffusion-gemma",
        )
    if (stray := model.generation.get("entropy_bound")) is not None:
        raise ModelError(
            f"{model.name} sets entropy_bound to {stray} in its {_FILE}, and it belongs in sampler_config", _CORRECT
        )
    stated = {**model.generation, "entropy_bound": inner.get("entropy_bound")}
    values = {key: plain if stated.get(key) is None else stated[key] for key, plain in _DIFFUSION.items()}
    for key, value in values.items():
        whole = key in ("max_denoising_steps", "stability_threshold")
        least = 1 if key == "max_denoising_steps" else 0
        if not is_number(value) or value < least or (whole and not is_whole(value)):
            raise ModelError(
                f"{model.name} sets {key} to {str(value)[:80]} in its {_FILE}, and it has to be a number", _CORRECT
            )
    if values["stability_threshold"] != 1:
        raise ModelError(
            f"{model.name} sets stability_threshold to {values['stability_threshold']} in its {_FILE}, and only 1 is"
            " supported: a canvas is compared with the previous one",
            "name the sampler to decode with 1: preset:diffusion-gemma",
        )
    steps, high, low = (values[key] for key in ("max_denoising_steps", "t_max", "t_min"))
    spec = f"selfcondition+anneal:high={high},low={low},steps={steps}"
    spec += f"+renoise:gamma={values['entropy_bound']},confidence={values['confidence_threshold']},steps={steps}"
    return {"temperature": 1.0, **arguments, "sampler": spec + "+eos@causal"}


# Keys of the loop of uniform noise, each with its default and its words where it is wrong.
_NOISE: Mapping[str, tuple[Any, str]] = {
    "sampler": ("ancestral", "'ancestral', 'adaptive' or 'greedy'"),
    "num_denoising_steps": (128, "a whole number above 0"),
    "schedule": ("linear", "'linear' or 'cosine'"),
    "min_log_snr": (-9.0, "a number"),
    "max_log_snr": (9.0, "a number, at least min_log_snr"),
    "tokens_per_step": (1, "a whole number"),
    "temperature": (1.0, "a number of at least 0"),
    "trim_at_eos": (True, "true: a result ends at the first end token"),
    "denoise_end": (None, "absent: a canvas is filled to its end"),
    "frozen": (None, "absent: a template fixes tokens"),
}


def _uniform_noise(model: LanguageModel) -> tuple[str, float]:
    """Sampler and temperature of generation_config.json for a whole canvas of random tokens."""
    stated = model.generation
    values = {key: plain if stated.get(key) is None else stated[key] for key, (plain, _) in _NOISE.items()}
    low, high = values["min_log_snr"], values["max_log_snr"]
    steps, tokens = values["num_denoising_steps"], values["tokens_per_step"]
    sound = {
        "sampler": values["sampler"] in ("ancestral", "adaptive", "greedy"),
        "num_denoising_steps": is_whole(steps) and steps >= 1,
        "schedule": values["schedule"] in ("linear", "cosine"),
        "min_log_snr": is_number(low),
        "max_log_snr": is_number(high) and is_number(low) and low <= high,
        "tokens_per_step": is_whole(tokens),
        "temperature": is_number(values["temperature"]) and values["temperature"] >= 0,
        "trim_at_eos": values["trim_at_eos"] is True,
        "denoise_end": values["denoise_end"] is None,
        "frozen": values["frozen"] is None,
    }
    for key, right in sound.items():
        if not right:
            raise ModelError(
                f"{model.name} sets {key} to {str(values[key])[:80]} in its {_FILE}, and it has to be {_NOISE[key][1]}",
                "name the sampler to decode without that file: preset:sumi",
            )
    kinds = {
        "ancestral": f"ancestral:steps={steps},schedule={values['schedule']},low={low},high={high}",
        "adaptive": f"adaptive:steps={steps},tokens={max(tokens, 1)}",
        "greedy": f"adaptive:steps={steps},tokens={model.decoding_config.block}",  # every position, the likeliest token
    }
    return kinds[values["sampler"]], 0.0 if values["sampler"] == "greedy" else float(values["temperature"])


def _is_sequence(value: object, size: int) -> bool:
    return isinstance(value, list) and bool(value) and all(is_whole(each) and 0 <= each < size for each in value)


def _is_bias(value: object, size: int) -> bool:
    return isinstance(value, list) and len(value) == 2 and _is_sequence(value[0], size) and is_number(value[1])
