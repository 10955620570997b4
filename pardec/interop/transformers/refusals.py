"""What pardec cannot do in place of transformers' own decoding, said by name before anything runs."""

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

_FINE = {"attention_mask", "position_ids", "past_key_values", "use_cache", "logits_to_keep", "cache_position"}
_MODES = {GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE}
_HINTS = {
    GenerationMode.ASSISTED_GENERATION: 'name the drafter as the sampler: sampler="lookup", or candidates(generator)',
    GenerationMode.BEAM_SEARCH: "leave num_beams out",
}
_RECORDS = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")
# They know each row by its place in the batch, keep a memory from call to call, or run the model.
_PROCESSORS = (
    EncoderNoRepeatNGramLogitsProcessor,
    EncoderRepetitionPenaltyLogitsProcessor,
    SynthIDTextWatermarkLogitsProcessor,
    UnbatchedClassifierFreeGuidanceLogitsProcessor,
)


def refuse(model: Any, config: Any, processors: Any, given: Mapping[str, Any], assistant: Any) -> None:
    """Raises SpecError for what this call asks and pardec does not do.

    Args:
        given: what `generate` hands on to the model's forward.
        assistant: the assistant_model of the call.
    """
    own = "leave custom_generate out for transformers' own decoding"
    if model.config.is_encoder_decoder:
        raise SpecError(f"{type(model).__name__} has an encoder, and pardec decodes decoder-only models", hint=own)
    if model.training:
        raise SpecError("the model is in training mode, where its logits are random", hint="call model.eval() before")
    if any(isinstance(part, _DropoutNd) and part.training and part.p for part in model.modules()):
        raise SpecError(
            "a part of the model is in training mode, where it drops states", hint="call model.eval() before"
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
            "an assistant_model is given beside a sampler, and one of them drafts",
            hint='leave it out and draft with sampler="model:name=..." or with candidates(...)',
        )
    mode = config.get_generation_mode()
    if mode not in _MODES:
        words = mode.value.replace("_", " ")
        raise SpecError(
            f"the call asks for {words}, and pardec decodes greedily or samples", hint=_HINTS.get(mode, own)
        )
    asked = [name for name in _RECORDS if config.return_dict_in_generate and getattr(config, name, None)]
    if asked:
        raise SpecError(f"{asked[0]} is not kept, since most of it is of rejected drafts", hint=f"leave {asked[0]} out")
    for processor in processors:
        if isinstance(processor, _PROCESSORS):
            raise SpecError(
                f"{type(processor).__name__} cannot be run on the nodes of a draft",
                hint="leave out the argument that brings it, or leave custom_generate out",
            )
    kind = getattr(config, "cache_implementation", None) or ""
    if "offloaded" in kind or kind == "quantized":
        raise SpecError(
            f"cache_implementation={kind!r} is asked for, and pardec's cache is whole and on the device",
            hint="leave cache_implementation out",
        )
    strange = sorted(name for name, value in given.items() if value is not None and name not in _FINE)
    if strange:
        raise SpecError(f"the model is given {', '.join(strange)}, and pardec feeds token ids alone", hint=own)
    cache = given.get("past_key_values")
    if cache is not None and (cache.get_seq_length() or getattr(cache, "_is_user_defined", False)):
        raise SpecError("past_key_values is given, and pardec keeps its own cache", hint="leave past_key_values out")


def real(input_ids: Tensor, given: Mapping[str, Any]) -> Tensor:
    """[B, P] bool: which of `input_ids` [B, P] are no padding.

    SpecError unless padding stands on the left alone and positions are counted from the first token of each row.
    """
    mask = given.get("attention_mask")  # transformers hands over None for one that hides nothing
    kept: Tensor = torch.ones_like(input_ids, dtype=torch.bool) if mask is None else mask.to(input_ids.device).bool()
    if kept.shape != input_ids.shape:
        raise SpecError(
            f"attention_mask is {list(kept.shape)} and input_ids are {list(input_ids.shape)}", hint="they must agree"
        )
    if not (kept[:, -1].all() and (kept[:, 1:] >= kept[:, :-1]).all()):
        raise SpecError(
            "attention_mask has gaps or padding on the right, and the text goes on there",
            hint='pad on the left (tokenizer.padding_side = "left"); pass attention_mask if the text has the pad token',
        )
    places = given.get("position_ids")
    if places is not None and not _counts(places.to(kept.device), kept):
        raise SpecError(
            "position_ids do not count the tokens of each row from 0",
            hint="leave position_ids out; leave custom_generate out too where the text is to stand elsewhere",
        )
    return kept


def _counts(places: Tensor, kept: Tensor) -> bool:
    """Whether `places` [B, P] or [1, P] number what is `kept` [B, P] of each row from 0."""
    if places.ndim > 2 or places.shape[-1] != kept.shape[1] or len(places) not in (1, len(kept)):
        return False
    return torch.equal(places.expand_as(kept)[kept], (kept.long().cumsum(-1) - 1)[kept])
