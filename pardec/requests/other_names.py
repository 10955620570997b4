"""Hints for arguments of other engines that `generate` and `load` do not have.

`pardec.requests.settings.OTHER_NAMES` adds the names that other libraries give to pardec's own arguments.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from pardec.models.errors import ArgumentError, SpecError, did_you_mean

_PROMPT = 'the prompt comes first: model.generate("..."), with a list of texts or of chat messages for several'
_STEPS = 'the sampler sets the number of steps: sampler="fixed:steps=32"'
_BEAMS = "there is no beam search; num_return_sequences=4 with a temperature samples four answers"
_ORDER = 'the sampler decides what is committed: sampler="confidence", or margin, entropy, random, origin'
_THRESHOLD = 'the sampler decides what is committed: sampler="threshold:tau=0.9"'
_CACHE = 'the sampler names its cache: sampler="threshold@dual"; "pardec list samplers --stage cache" shows them'
_DRAFT = 'the sampler names the drafter: sampler="model:name=FOLDER" or "lookup"'
_STREAM = "for event in model.stream(prompt, ...): each event has the text that became final"
_TRACE = "a result always has .trace, .nfe and .timing"

_BY_HINT: Mapping[str, tuple[str, ...]] = {
    _PROMPT: ("prompts", "text", "texts", "messages", "conversation", "inputs"),
    _STEPS: ("steps", "num_steps", "num_inference_steps", "diffusion_steps", "max_steps"),
    _BEAMS: ("num_beams", "num_beam_groups", "beam_width", "best_of", "early_stopping", "diversity_penalty"),
    "stop_ids=[] never stops": ("ignore_eos", "eos_early_stop"),
    "rows of unequal length need no padding, and the mask token is the checkpoint's; pardec.load takes mask_id=": (
        *("pad_token_id", "pad_id", "bos_token_id", "mask_id", "mask_token_id"),
    ),
    _ORDER: ("remasking", "remask", "alg", "alg_temp", "remasking_strategy", "unmasking", "mask_schedule"),
    _THRESHOLD: ("threshold", "confidence_threshold", "tau", "factor", "accept_threshold", "editing_threshold"),
    _CACHE: (
        *("use_cache", "cache", "past_key_values", "cache_implementation"),
        *("dual_cache", "prefix_cache", "use_dual_cache"),
    ),
    _DRAFT: (
        *("assistant_model", "draft_model", "speculative_model", "num_assistant_tokens", "num_speculative_tokens"),
        *("prompt_lookup_num_tokens", "prompt_lookup_max", "speculative_config", "assistant_tokenizer"),
    ),
    _STREAM: ("stream", "streamer", "callbacks", "generation_tokens_hook_func", "on_token"),
    "leave the loop of model.stream(...) at any time; stop= and stop_ids= end rows": (
        "stopping_criteria",
        "max_time",
    ),
    _TRACE: (
        *("return_dict_in_generate", "output_history", "output_hidden_states"),
        *("output_attentions", "return_timestamps"),
    ),
    "model.logits(input_ids) gives the logits of any text": ("prompt_logprobs",),
    "pass its values one by one, as temperature=0.7, top_p=0.9": ("generation_config", "sampling_params", "gen_kwargs"),
    'sampler="..." is a spec; "pardec list samplers" shows all samplers': ("spec", "method", "strategy", "scheduler"),
    "batches are the prompts of one call, or model.serve_batch(prompts, batch_size=8)": ("batch_size",),
    "pardec.load takes device=": ("device",),
    'it belongs to a chat template: pass messages, [{"role": "user", "content": "..."}]': ("system", "system_prompt"),
    "result.text has neither the prompt nor special tokens; result.sequences has all ids": (
        *("return_full_text", "skip_special_tokens", "skip_prompt", "echo", "include_stop_str_in_output"),
    ),
    "leave it out: the model brings its own tokenizer": ("tokenizer",),
}

WORDS: Mapping[str, str] = {name: hint for hint, names in _BY_HINT.items() for name in names}  # argument -> hint

_OF_LOAD: Mapping[str, tuple[str, ...]] = {
    'quantize="int4" quantizes the linear layers': ("load_in_4bit",),
    'quantize="int8" quantizes the linear layers': ("load_in_8bit",),
    'quantize="int8", or int4, fp8, quantizes the linear layers': (*("quantization_config", "quantization", "bits"),),
    'dtype="bfloat16" is the precision': ("torch_dtype", "precision", "data_type"),
    "leave it out: pardec runs no remote code": ("trust_remote_code", "custom_code"),
    "leave it out: attention runs in the fastest kernel available": (
        *("attn_implementation", "use_flash_attention_2", "attention_implementation"),
    ),
    "leave it out: weights are read straight to their device": ("low_cpu_mem_usage",),
    "tp=True under torchrun splits every layer": ("tensor_parallel_size", "tp_plan", "tp_size"),
    'device_map="auto" spreads the layers over all devices': ("max_memory", "n_gpu_layers", "num_gpus"),
    "offline=True uses what is on the disk already": ("local_files_only",),
    "leave it out: the context is the checkpoint's own": ("max_model_len", "n_ctx", "max_length"),
    "leave it out: the model brings its own tokenizer": ("tokenizer", "tokenizer_mode"),
    "set the variable HF_TOKEN": ("token", "use_auth_token"),
    "set the variable HF_HOME": ("cache_dir",),
    'the name comes first: pardec.load("tiny-dream")': ("model", "model_id", "pretrained_model_name_or_path", "path"),
    "the sampler names the drafter: generate(sampler=...)": ("draft_model", "speculative_model", "speculative_config"),
}
_LOAD_WORDS = {name: hint for hint, names in _OF_LOAD.items() for name in names}

P = ParamSpec("P")
R = TypeVar("R")


def known_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """Makes `load` raise an ArgumentError with a hint for an argument that it does not take."""
    known = list(inspect.signature(function).parameters)

    @wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name not in known:
                near = "" if name in _LOAD_WORDS else did_you_mean(name, known)
                hint = _LOAD_WORDS.get(name, f"it takes {', '.join(known)}")
                raise ArgumentError(f"{function.__name__} takes no argument {name!r}{near}", hint)
        return function(*args, **kwargs)

    return checked


def pretrained_arguments(load: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Renames `torch_dtype` and `local_files_only` of diffusers' `from_pretrained` to `dtype` and `offline` of `load`.

    Raises SpecError for an argument that `load` does not take, and for `trust_remote_code=True`.
    """
    names = {"torch_dtype": "dtype", "local_files_only": "offline"}
    arguments = {names.get(name, name): value for name, value in given.items()}
    if arguments.pop("trust_remote_code", False):
        raise SpecError("trust_remote_code=True, and pardec runs no remote code", hint="leave it out")
    known = [name for name in inspect.signature(load).parameters if name != "name"]
    for name in arguments:
        if name not in known:
            raise SpecError(f"from_pretrained takes no {name!r}", hint=f"pardec.load takes {', '.join(known)}")
    return arguments
