"""Runs diffusers' own loop (LLaDA2Pipeline) on a pardec model or on a network of the caller.

All rows of a batch are in the same block and wait for each other, shorter rows are padded, and tokens after a row's end
are left as they are: the result equals that of diffusers, token for token.
"""

from __future__ import annotations

import inspect
import time
import warnings
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from diffusers import LLaDA2Pipeline
from diffusers.callbacks import MultiPipelineCallbacks, PipelineCallback
from torch import Tensor, nn

from pardec.models import finite
from pardec.models.caches.kv_cache import KVCache
from pardec.models.errors import ModelError, SpecError
from pardec.models.kernels.attention import visible_slots
from pardec.models.model import LanguageModel
from pardec.models.plan import Plan, Visible
from pardec.samplers.events import Finished
from pardec.samplers.trace import PROMPT, UNCOMMITTED, Trace

from ...api import Model
from ...requests.call import Call
from ...result import Result
from .arguments import sampling_settings
from .chosen import display_sampler
from .own_loop import pad, prepare


def run(pipeline: Any, call: Mapping[str, Any], scheduler: Any) -> tuple[Tensor, list[str] | None, Result | None]:
    """The sequences [B, gen_length] after the prompts, their texts, and a Result if the model is a pardec model.

    Args:
        call: the arguments of LLaDA2Pipeline's call, by name.

    Raises:
        SpecError: for arguments that LLaDA2Pipeline, or pardec for its own model, does not accept.
    """
    model: Any = pipeline.model
    call = {**call, "block_length": _block_length(pipeline, call["block_length"])}
    _check(pipeline, call)
    ids, mask = pad(pipeline, call)
    call |= {"prompt": None, "messages": None, "input_ids": ids, "attention_mask": mask}
    for name in ("eos_token_id", "mask_token_id"):
        call[name] = getattr(pipeline, name) if call[name] is None else call[name]
    if call["mask_token_id"] is None:
        raise SpecError("mask_token_id is missing", hint="pass the id of the mask token, or a tokenizer that has one")
    if not isinstance(model, Model):
        return *_run_loop(pipeline, model, scheduler, call), None
    sampler = display_sampler(call)
    # diffusers does the sampling, so its generator must not be used here.
    ready = prepare(pipeline, ids.tolist(), sampler, {**call, "generator": None, "temperature": 0.0})
    editing = call["editing_threshold"] is not None and call["editing_threshold"] > 0
    network = Network(model.language_model, call["block_length"], max(ready.lengths))
    network.always_run = editing or call["callback_on_step_end"] is not None
    started = time.perf_counter()
    sequences, texts = _run_loop(pipeline, network, scheduler, call)
    seconds = time.perf_counter() - started
    if call["eos_early_stop"] and (missed := network.forwards_after_the_end(ready)):
        warnings.warn(
            f"diffusers' loop made {missed} of {len(network.inputs)} forwards after every row had ended: it stops only "
            "where the end token is committed last; sampler= decodes in pardec's loop, which ends there",
            stacklevel=4,
        )
    ready = replace(ready, request=replace(ready.request, temperature=float(call["temperature"])))
    return (sequences, texts, model.result(ready, network.result(ready, sequences, call["eos_early_stop"]), seconds))


def _block_length(pipeline: Any, requested: int | None) -> int:
    if requested is not None:
        return requested
    own = pipeline.model.language_model.decoding_config.block if isinstance(pipeline.model, Model) else None
    return int(own or pipeline.scheduler.config.block_length)


def _check(pipeline: Any, call: Mapping[str, Any]) -> None:
    sampling_settings(call["temperature"], call["top_k"], call["top_p"], call["sampling_method"])
    parameters = inspect.signature(LLaDA2Pipeline.check_inputs).parameters
    try:
        pipeline.check_inputs(**{name: value for name, value in call.items() if name in parameters})
    except ValueError as error:
        raise SpecError(str(error), hint="LLaDA2Pipeline's documentation has its arguments") from error
    if call["gen_length"] < call["minimal_topk"]:
        raise SpecError(
            f"minimal_topk={call['minimal_topk']} is more than the {call['gen_length']} tokens to decode",
            hint=f"choose at most {call['gen_length']}",
        )


def _run_loop(pipeline: Any, network: Any, scheduler: Any, call: Mapping[str, Any]) -> tuple[Tensor, list[str] | None]:
    """LLaDA2Pipeline's call with this network and scheduler; callbacks get `pipeline`."""
    inner_pipeline = LLaDA2Pipeline(model=network, scheduler=scheduler, tokenizer=pipeline.tokenizer)
    inner_pipeline._progress_bar_config = getattr(pipeline, "_progress_bar_config", {})
    callback, names = call["callback_on_step_end"], call["callback_on_step_end_tensor_inputs"]
    if isinstance(callback, (PipelineCallback, MultiPipelineCallbacks)):
        names = callback.tensor_inputs

    def report(_: Any, step: int, timestep: int, tensors: dict[str, Tensor]) -> Any:
        pipeline._num_timesteps = inner_pipeline.num_timesteps
        return callback(pipeline, step, timestep, tensors) or {}

    hooks = {"callback_on_step_end": report if callback else None, "callback_on_step_end_tensor_inputs": names}
    sequences, texts = inner_pipeline(**{**call, **hooks, "return_dict": False})
    pipeline._num_timesteps = inner_pipeline.num_timesteps
    return sequences, texts


class Network(nn.Module):
    """A block-causal pardec model with the calling convention that LLaDA2Pipeline expects.

    Returns the logits of the last block of its input only, with the mask token at -inf. Blocks that have not changed
    since the previous forward are read from its cache. The forward that committed a token is inferred from the input of
    the next one.
    """

    def __init__(self, model: LanguageModel, block: int, length: int) -> None:
        """Prepares for rows of at most `length` tokens, rounded up to whole blocks."""
        super().__init__()
        finite.demand_head(model)
        self.model, self.block, self.length = model, block, -(-length // block) * block
        self.device, self.dtype = model.device, model.dtype
        self.always_run = True  # whether outputs for a block without open positions are used
        self.cache: KVCache | None = None
        self.inputs: list[Tensor] = []  # [B, n] ids of each forward
        self.queried: list[range] = []  # positions that each forward queried
        self.scores: list[Tensor] = []  # [B, W] probabilities of the last block's tokens after the forward
        self.logits: Tensor | None = None  # [B, W, V] of the last forward

    def forward(self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor) -> Any:
        open_positions = input_ids[:, -self.block :].eq(self.model.decoding_config.mask_id or 0)
        if not (self.always_run or self.logits is None or open_positions.any()):
            return SimpleNamespace(logits=self.logits)  # the loop runs one more step before it leaves a block
        self._record_scores(input_ids)
        model, (batch, end) = self.model, input_ids.shape
        positions = torch.arange(end - self.block, end, device=input_ids.device).expand(batch, -1)
        wanted = model.rows(positions)
        start = min(self._cached_length(input_ids), int(wanted[0, 0]) // self.block * self.block)
        order = torch.arange(start, end, device=input_ids.device).expand(batch, -1)
        lengths = torch.full((batch,), end, device=input_ids.device)
        plan = Plan(
            input_ids[:, start:], order, order, model.visible(), lengths, wanted - start, uniform=end, span=(start, end)
        )
        if not attention_mask.all():
            attended = attention_mask.bool()[:, None]
            plan = replace(plan, visible=Visible.mask(visible_slots(plan, end) & attended))
        if self.cache is None:
            self.cache = model.new_cache(batch, self.length)
        logits = model.forward(plan, self.cache).logits().clone()
        logits[..., model.decoding_config.mask_id] = -torch.inf
        if not bool(finite.highest(logits).isfinite()):
            error = finite.failure(model, [(plan, self.cache)])
            raise error or ModelError(f"{model.name} gives logits that are not finite")
        self.inputs.append(input_ids.clone())
        self.queried.append(range(start, end))
        self.logits = logits
        return SimpleNamespace(logits=logits)

    def _cached_length(self, input_ids: Tensor) -> int:
        """The number of leading positions, in whole blocks, that equal the last forward's in every row."""
        if not self.inputs:
            return 0
        previous = self.inputs[-1]
        width = min(input_ids.shape[1], previous.shape[1])
        same = (input_ids[:, :width] == previous[:, :width]).all(0).cumprod(0)
        return int(same.sum()) // self.block * self.block

    def _record_scores(self, tokens: Tensor) -> None:
        """Records the scores of the last block for the tokens [B, m] after the last forward."""
        if self.logits is None:
            return
        width = self.inputs[-1].shape[1]
        block = tokens[:, width - self.block : width]
        distribution = self.logits[:, : block.shape[1]].softmax(-1)
        self.scores.append(distribution.gather(-1, block[..., None])[..., 0])

    def forwards_after_the_end(self, call: Call) -> int:
        """How many forwards were made in blocks that were begun after every row had ended."""
        mask = self.model.decoding_config.mask_id
        start, width = max(call.prompts), 0
        for number, tokens in enumerate(self.inputs):
            if tokens.shape[1] > width and number:  # a block begins
                answer = tokens[:, start:width]
                ended = torch.isin(answer, torch.tensor(call.stop_ids, device=answer.device)).cumsum(1) > 0
                if bool((ended & ~(answer.eq(mask or 0).cumsum(1) > 0)).any(1).all()):
                    return len(self.inputs) - number
            width = tokens.shape[1]
        return 0

    def result(self, call: Call, sequences: Tensor, early: bool) -> Finished:
        """The outcome for `sequences` [B, gen_length] after the prompts; `early`: rows may stop at an end token."""
        tokens = torch.stack(call.request.canvases).to(sequences.device)
        start, length = tokens.shape[1] - sequences.shape[1], tokens.shape[1]
        outputs = [*self.inputs[1:], torch.cat((tokens[:, :start], sequences), 1)]
        self._record_scores(outputs[-1])
        commit_step = torch.full_like(tokens, PROMPT, dtype=torch.int32)
        commit_step[:, start:] = UNCOMMITTED
        commit_score = torch.zeros_like(tokens, dtype=torch.float32)
        for forward, (previous, following, score) in enumerate(zip(self.inputs, outputs, self.scores, strict=True)):
            end = min(previous.shape[1], length)
            block = slice(previous.shape[1] - self.block, end)
            changed = previous[:, block] != following[:, block]
            commit_step[:, block].masked_fill_(changed, forward)
            commit_score[:, block] = torch.where(changed, score[:, : end - block.start], commit_score[:, block])
        final, rows, forwards = outputs[-1].cpu().numpy(), len(tokens), len(self.inputs)
        ends = [early and any(token in call.stop_ids for token in row) for row in final[:, start:].tolist()]
        return Finished(
            tokens=final,
            reasons=tuple("stop" if end else "length" for end in ends),
            nfe=(forwards,) * rows,
            forward_rows=(forwards,) * rows,
            tokens_fed=(sum(map(len, self.queried)),) * rows,
            trace=Trace(
                final,
                commit_step.cpu().numpy(),
                commit_score.cpu().numpy(),
                np.full(rows, length),
                (tuple(self.queried),) * rows,
            ),
        )
