"""Rejects calls of transformers' `generate` that pardec does not support, before anything runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.dropout import _DropoutNd
from transformers.generation import (
    EncoderNoRepeatNGramLogitsProcessor,
    EncoderRepetitionPenaltyLogitsProcessor,
    GenerationMode,
    SynthIDTextWatermarkLogitsProcessor,
    UnbatchedClassifierFreeGuidanceLogitsProcessor,
)

from pardec.models.errors import SpecError

_SUPPORTED = {"attention_mask", "position_ids", "past_key_values", "use_cache", "logits_to_keep", "cache_position"}
_SUPPORTED_MODES = {GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE}
_HINTS = {
    GenerationMode.ASSISTED_GENERATION: 'name the drafter as the sampler: sampler="lookup", or candidates(generator)',
    GenerationMode.BEAM_SEARCH: "leave num_beams out",
}
_UNSUPPORTED_OUTPUTS = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")
# These identify rows by their batch index, keep state between calls, or run the model.
_PROCESSORS = (
    EncoderNoRepeatNGramLogitsProcessor,
    EncoderRepetitionPenaltyLogitsProcessor,
    SynthIDTextWatermarkLogitsProcessor,
    UnbatchedClassifierFreeGuidanceLogitsProcessor,
)


def refuse(model: Any, config: Any, processors: Any, model_kwargs: Mapping[str, Any], assistant: Any) -> None:
    """Raises SpecError for anything in this call that pardec does not support.

    Args:
        model_kwargs: the arguments that `generate` passes to the model's forward.
        assistant: the assistant_model of the call.
    """
    hint = "leave custom_generate out for transformers' own decoding"
    if model.config.is_encoder_decoder:
        raise SpecError(f"{type(model).__name__} has an encoder, and pardec decodes decoder-only models", hint=hint)
    if model.training:
        raise SpecError("the model is in training mode, where its logits are random", hint="call model.eval() before")
    if any(isinstance(part, _DropoutNd) and part.training and part.p for part in model.modules()):
        raise SpecError(
            "a module of the model is in training mode and applies dropout", hint="call model.eval() before"
        )
    if torch.is_autocast_enabled(model.device.type):
        raise SpecError(
            "autocast is on, and pardec's cache has the model's own dtype",
            hint="leave autocast, or cast the model: model.to(torch.bfloat16)",
        )
    hooks = len(model._forward_hooks) + len(model._forward_pre_hooks)
    if hooks:
        raise SpecError(
            f"{hooks} forward hook{'s' * (hooks > 1)} on the {type(model).__name__} itself would not run: "
            "pardec calls its body and its head",
            hint=f"hook model.{model.base_model_prefix} or a module in it, or leave custom_generate out",
        )
    if assistant is not None:
        raise SpecError(
            "assistant_model cannot be combined with a sampler, which names its own drafter",
            hint='leave assistant_model out and draft with sampler="model:name=..." or with candidates(...)',
        )
    mode = config.get_generation_mode()
    if mode not in _SUPPORTED_MODES:
        words = mode.value.replace("_", " ")
        raise SpecError(
            f"the call asks for {words}, and pardec decodes greedily or samples", hint=_HINTS.get(mode, hint)
        )
    outputs = [name for name in _UNSUPPORTED_OUTPUTS if config.return_dict_in_generate and getattr(config, name, None)]
    if outputs:
        raise SpecError(
            f"{outputs[0]} is not supported: forwards here verify several tokens at once",
            hint=f"leave {outputs[0]} out",
        )
    for processor in processors:
        if isinstance(processor, _PROCESSORS):
            raise SpecError(
                f"{type(processor).__name__} cannot be run on the nodes of a draft",
                hint="leave out the argument that adds it, or leave custom_generate out",
            )
    kind = getattr(config, "cache_implementation", None) or ""
    if "offloaded" in kind or kind == "quantized":
        raise SpecError(
            f"cache_implementation={kind!r} is requested, and pardec's cache is unquantized and on the device",
            hint="leave cache_implementation out",
        )
    unsupported = sorted(name for name, value in model_kwargs.items() if value is not None and name not in _SUPPORTED)
    if unsupported:
        raise SpecError(f"the model is given {', '.join(unsupported)}, and pardec feeds token ids alone", hint=hint)
    cache = model_kwargs.get("past_key_values")
    if cache is not None and (cache.get_seq_length() or getattr(cache, "_is_user_defined", False)):
        raise SpecError("past_key_values is given, and pardec keeps its own cache", hint="leave past_key_values out")


def real_tokens(input_ids: Tensor, model_kwargs: Mapping[str, Any]) -> Tensor:
    """[B, P] bool: which of `input_ids` [B, P] are not padding.

    Raises SpecError unless all padding is on the left and positions count from the first token of each row.
    """
    mask = model_kwargs.get("attention_mask")  # transformers passes None for a mask of ones
    real: Tensor = torch.ones_like(input_ids, dtype=torch.bool) if mask is None else mask.to(input_ids.device).bool()
    if real.shape != input_ids.shape:
        raise SpecError(
            f"attention_mask is {list(real.shape)} and input_ids are {list(input_ids.shape)}", hint="they must agree"
        )
    if not (real[:, -1].all() and (real[:, 1:] >= real[:, :-1]).all()):
        raise SpecError(
            "attention_mask has gaps or padding on the right, where generation continues",
            hint='pad on the left (tokenizer.padding_side = "left"); pass attention_mask if the text has the pad token',
        )
    positions = model_kwargs.get("position_ids")
    if positions is not None and not _count_from_zero(positions.to(real.device), real):
        raise SpecError(
            "position_ids do not count the tokens of each row from 0",
            hint="leave position_ids out; leave custom_generate out too to use other positions",
        )
    return real


def _count_from_zero(positions: Tensor, real: Tensor) -> bool:
    """Whether `positions` [B, P] or [1, P] count the `real` [B, P] tokens of each row from 0."""
    if positions.ndim > 2 or positions.shape[-1] != real.shape[1] or len(positions) not in (1, len(real)):
        return False
    return torch.equal(positions.expand_as(real)[real], (real.long().cumsum(-1) - 1)[real])
