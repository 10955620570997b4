"""Runs pardec's loop with the arguments of LLaDA2Pipeline's call."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pardec.models.errors import SpecError
from pardec.samplers.events import Finished, Step
from pardec.samplers.masked.contracts import MaskedSampler
from pardec.samplers.spec import Policy, Spec, parse

from ...api import Model
from ...drivers.masked import BLOCK, with_own_cache
from ...requests.call import Call
from ...result import Result
from .arguments import draw_seeds, sampling_settings
from .callbacks import StepCallbacks
from .chosen import select_sampler, with_eos
from .prompts import encode, remove_padding

_PACE = ("num_inference_steps", "threshold", "minimal_topk", "editing_threshold", "max_post_steps", "gen_length")


def run(
    pipeline: Any, call: Mapping[str, Any], sampler: str | Spec | Policy | MaskedSampler | None
) -> tuple[Tensor, list[str] | None, Result]:
    """The sequences [B, gen_length] after the prompts, their texts, and pardec's Result.

    Args:
        call: the arguments of LLaDA2Pipeline's call, by name.
    """
    model: Model = pipeline.model
    if call["output_type"] not in ("seq", "text"):
        raise SpecError(f'output_type must be "seq" or "text", got {call["output_type"]!r}')
    pace = {name: call[name] for name in _PACE}
    resolved = with_eos(select_sampler(pipeline.scheduler, sampler, pace), call["eos_early_stop"])
    if _names_no_cache(pipeline.scheduler, sampler):
        resolved = with_own_cache(model.language_model, resolved)
    callbacks = StepCallbacks(pipeline, call["callback_on_step_end"], call["callback_on_step_end_tensor_inputs"])
    if call["input_ids"] is not None:
        rows = remove_padding(call["input_ids"], call["attention_mask"])
    else:
        names = ("prompt", "messages", "use_chat_template", "add_generation_prompt")
        rows = encode(pipeline.tokenizer, *(call[name] for name in names))
    prepared = prepare(pipeline, rows, callbacks.with_recorder(resolved), call)
    started = time.perf_counter()
    with pipeline.progress_bar(total=call["gen_length"] * len(rows)) as bar:
        for event in model.run(prepared):
            callbacks.on_event(event)
            if isinstance(event, Step):
                bar.update(int(event.committed.sum()))
    assert isinstance(event, Finished), "a loop ends with Finished"
    result = model.result(prepared, event, time.perf_counter() - started)
    sequences = [row[start:][: call["gen_length"]] for row, start in zip(result.sequences, result.prompts, strict=True)]
    texts = None
    if call["output_type"] == "text" and pipeline.tokenizer is not None:
        texts = pipeline.tokenizer.batch_decode(result.tokens, skip_special_tokens=True)
    return torch.stack(sequences).to(pipeline.device), texts, result


def _names_no_cache(scheduler: Any, sampler: str | Spec | Policy | MaskedSampler | None) -> bool:
    """Whether the call leaves the cache to the model's family."""
    value = getattr(scheduler.config, "sampler", None) if sampler is None else sampler
    return value is None or (not isinstance(value, MaskedSampler) and parse(value).cache is None)


def prepare(pipeline: Any, rows: Sequence[Sequence[int]], sampler: MaskedSampler, call: Mapping[str, Any]) -> Call:
    """Prepares the call for these rows of ids with `Model.prepare`."""
    model, generator = pipeline.model, call["generator"]
    ends, new = call["eos_token_id"], call["gen_length"]
    prompt: dict[str, Any] = {"input_ids": rows, "max_new_tokens": new}
    if not any(rows):  # without prompts, the canvas is passed as a template
        prompt = {"template": [[None] * new] * len(rows)}
        ends = model.language_model.decoding_config.eos_ids if ends is None else ends
    prepared: Call = model.prepare(
        sampler=sampler,
        block_length=_block_length(pipeline, call["block_length"], new),
        stop_ids=ends,
        seed=draw_seeds(generator, 1)[0] if call["temperature"] or generator is not None else 0,
        **prompt,
        **sampling_settings(call["temperature"], call["top_k"], call["top_p"], call["sampling_method"]),
    )
    return prepared


def _block_length(pipeline: Any, requested: int | None, new: int) -> int | None:
    """The block length of the call; None to use that of a block-causal model."""
    block_causal = pipeline.model.language_model.decoding_config.attention == "block-causal"
    if requested is None and block_causal:
        return None
    block = getattr(pipeline.scheduler.config, "block_length", BLOCK) if requested is None else requested
    return int(block) if block_causal else min(int(block), new)
