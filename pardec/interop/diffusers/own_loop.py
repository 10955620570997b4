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


def encode(
    tokenizer: Any,
    prompt: str | Sequence[str] | None,
    messages: Sequence[Any] | None,
    use_chat_template: bool,
    add_generation_prompt: bool,
) -> list[list[int]]:
    """Text or chat messages as ids; text becomes a user message if the tokenizer has a chat template."""
    if (prompt is None) == (messages is None):
        raise SpecError(
            "a request needs exactly one of prompt, messages and input_ids",
            hint='for example prompt="Name three fjords."',
        )
    if tokenizer is None:
        raise SpecError("the model has no tokenizer", hint="pass input_ids, or tokenizer=")
    if messages is None:
        texts = [prompt] if isinstance(prompt, str) else prompt
        if not isinstance(texts, Sequence) or not texts or not all(isinstance(text, str) for text in texts):
            raise SpecError("prompt must be a text or a list of texts", hint='prompt=["Name three fjords."]')
        if not use_chat_template or not getattr(tokenizer, "chat_template", None):
            return [list(tokenizer(text)["input_ids"]) for text in texts]
        conversations: list[Any] = [[{"role": "user", "content": text}] for text in texts]
    else:
        conversations = [messages] if messages and isinstance(messages[0], Mapping) else list(messages)
    options = {"add_generation_prompt": add_generation_prompt, "tokenize": True, "return_dict": True}
    return [list(tokenizer.apply_chat_template(talk, **options)["input_ids"]) for talk in conversations]


def remove_padding(input_ids: Tensor, attention_mask: Tensor | None) -> list[list[int]]:
    """Rows of ids where the mask is not 0."""
    if not isinstance(input_ids, Tensor) or input_ids.ndim not in (1, 2) or input_ids.dtype != torch.int64:
        kind = (
            f"{input_ids.dtype} {list(input_ids.shape)}" if isinstance(input_ids, Tensor) else type(input_ids).__name__
        )
        raise SpecError(f"input_ids must be a LongTensor [P] or [B, P], got {kind}")
    ids = input_ids[None] if input_ids.ndim == 1 else input_ids
    if attention_mask is None:
        return [list(row) for row in ids.tolist()]
    real = (attention_mask[None] if attention_mask.ndim == 1 else attention_mask) != 0
    if real.shape != ids.shape:
        raise SpecError(f"attention_mask is {list(real.shape)} and input_ids {list(ids.shape)}", hint="they must agree")
    if ((real[:, 1:] & ~real[:, :-1]).sum(1) + real[:, 0] > 1).any():
        raise SpecError("attention_mask has a gap inside a prompt", hint="mark padding on the left or the right only")
    return [row[mask].tolist() for row, mask in zip(ids, real, strict=True)]


def pad(pipeline: Any, call: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """Ids and mask [B, P] as in LLaDA2Pipeline, also for lists of conversations; padded by the tokenizer."""
    names = ("prompt", "messages", "input_ids", "attention_mask", "use_chat_template", "add_generation_prompt")
    texts = {name: call[name] for name in names}
    prompt: Any = texts["prompt"]
    messages: Any = texts["messages"]
    if isinstance(prompt, list) and texts["use_chat_template"] and getattr(pipeline.tokenizer, "chat_template", None):
        prompt, messages = None, [[{"role": "user", "content": text}] for text in prompt]
    is_batch = bool(messages) and not isinstance(messages[0], Mapping)
    try:
        ids, mask = pipeline._prepare_input_ids(
            **{**texts, "prompt": prompt, "messages": messages},
            chat_template_kwargs={"padding": True} if is_batch else None,
        )
    except ValueError as error:
        raise SpecError(str(error), hint="LLaDA2Pipeline's documentation has its arguments") from error
    return ids.long(), mask  # a tokenizer returns floats for empty text
