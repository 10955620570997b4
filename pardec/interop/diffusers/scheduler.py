"""A sampler spec as a diffusers scheduler, for the loop of diffusers' LLaDA2Pipeline.

The pipeline passes the logits of one block to the scheduler. They replace the model of a masked loop whose canvas is
that block, so every stage runs as it does in pardec. Each block is a separate request: the states of stages start anew.
"""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

import torch
from diffusers import BlockRefinementScheduler, SchedulerMixin
from diffusers.configuration_utils import register_to_config
from diffusers.schedulers.scheduling_block_refinement import BlockRefinementSchedulerOutput
from torch import Tensor

from pardec.models.errors import SpecError
from pardec.samplers import registry
from pardec.samplers.masked.contracts import MaskedSampler
from pardec.samplers.rng import Keyed
from pardec.samplers.traits import Trait

from .arguments import draw_seeds, refuse_unless_default, sampling_settings
from .block import Block, EvenShare

KIND = SchedulerMixin  # diffusers looks this up when it loads a pipeline with this scheduler
_RULE_ARGUMENTS = ("threshold", "editing_threshold", "minimal_topk")  # a spec has its own parameters for these


class PardecScheduler(BlockRefinementScheduler):  # type: ignore[misc]
    """diffusers' BlockRefinementScheduler with a sampler spec in place of its rule.

    Args:
        sampler: a spec such as "credit+threshold:tau=0.9"; None is diffusers' own rule. Caches, and stages that add
            to the model's inputs or need a second forward, require PardecPipeline. Parameters that refer to the whole
            canvas, such as the steps of `fixed`, refer to a block here.
        block_length: the default if the pipeline's call has none.
        num_inference_steps: most steps per block. The spec sets the pace, but each step commits at least an even share
            of the open positions, so that a block is complete after its steps.
        threshold, editing_threshold, minimal_topk: of diffusers' rule; not allowed with a spec.

    With a spec, `threshold` and `editing_threshold` of the pipeline's call must keep their defaults, and draws are
    keyed by a seed per row and block from the call's generator.
    """

    @register_to_config  # type: ignore[untyped-decorator]
    def __init__(
        self,
        sampler: str | None = None,
        block_length: int = 32,
        num_inference_steps: int = 32,
        threshold: float = 0.95,
        editing_threshold: float | None = None,
        minimal_topk: int = 1,
    ) -> None:
        super().__init__(
            block_length=block_length,
            num_inference_steps=num_inference_steps,
            threshold=threshold,
            editing_threshold=editing_threshold,
            minimal_topk=minimal_topk,
        )
        self.register_to_config(_use_default_values=[])  # diffusers counts positional arguments there
        if sampler is not None:
            for name, default in inspect.signature(BlockRefinementScheduler.__init__).parameters.items():
                if name in _RULE_ARGUMENTS and (value := self.config[name]) != default.default:
                    raise SpecError(
                        f"{name}={value!r} cannot be combined with a sampler",
                        hint=f"write it into the spec {sampler!r}",
                    )
        self._sampler = None if sampler is None else _resolve_spec(sampler)
        if sampler is not None:
            self.check_eos_finished = _finished_rows
        self.set_timesteps(num_inference_steps, block_length=block_length)

    def set_timesteps(
        self, num_inference_steps: int, device: str | torch.device | None = None, block_length: int | None = None
    ) -> None:
        """Begins a request. Raises SpecError for a count that is not positive."""
        for name, value in (("num_inference_steps", num_inference_steps), ("block_length", block_length)):
            if value is not None and value < 1:
                raise SpecError(f"{name} must be at least 1, got {value}")
        super().set_timesteps(num_inference_steps, device=device, block_length=block_length)
        self._block: Block | None = None

    def step(
        self,
        model_output: Tensor,
        timestep: int | Tensor,
        sample: Tensor,
        *,
        mask_token_id: int | None = None,
        temperature: float = 0.0,
        top_p: float | None = None,
        top_k: int | None = None,
        sampling_method: str = "auto",
        threshold: float | None = None,
        editing_threshold: float | None = None,
        minimal_topk: int | None = None,
        prompt_mask: Tensor | None = None,
        generator: torch.Generator | None = None,
        return_dict: bool = True,
    ) -> Any:
        """One step of a block: which of its positions are committed or revised, and to which tokens.

        Args:
            model_output: logits [B, W, V].
            timestep: the step's index within the block; 0 begins one.
            sample: the block's tokens [B, W] int64, the mask id where open.
            minimal_topk: not used here: the pipeline has reduced num_inference_steps by it.
            prompt_mask: [W] bool, prompt positions, which are never revised.

        Returns:
            BlockRefinementSchedulerOutput, or its fields as a tuple.
        """
        if self._sampler is None:
            return super().step(
                model_output,
                timestep,
                sample,
                mask_token_id=mask_token_id,
                temperature=temperature,
                top_p=top_p,
                top_k=top_k,
                sampling_method=sampling_method,
                threshold=threshold,
                editing_threshold=editing_threshold,
                minimal_topk=minimal_topk,
                prompt_mask=prompt_mask,
                generator=generator,
                return_dict=return_dict,
            )
        hint = f"write it into the spec; this scheduler runs {self.config.sampler!r}"
        refuse_unless_default("threshold", threshold, hint)
        refuse_unless_default("editing_threshold", editing_threshold, hint)
        if mask_token_id is None:
            raise SpecError("mask_token_id is missing", hint="pass the id of the model's mask token")
        block = self._block
        if int(timestep) == 0 or block is None or not block.continues(sample):
            distribution = sampling_settings(temperature, top_k, top_p, sampling_method)
            sampler = replace(self._sampler, widen=(*self._sampler.widen, EvenShare(self.num_inference_steps)))
            source = Keyed(tuple(draw_seeds(generator, len(sample))))
            block = self._block = Block(
                sampler, sample, mask_token_id, model_output.shape[-1], source, distribution, prompt_mask
            )
            block.loop.canvas.step += min(int(timestep), self.num_inference_steps - 1)
        block_tokens, probability, tokens = block.step(model_output)
        open_before = sample == mask_token_id
        changed = block_tokens != sample
        tokens = torch.where(changed, block_tokens, tokens)
        out = (block_tokens, changed & open_before, changed & ~open_before, tokens, probability, model_output)
        return BlockRefinementSchedulerOutput(*out) if return_dict else out

    def check_block_should_continue(
        self,
        step_idx: int,
        masks_remaining: bool | Tensor,
        editing_enabled: bool,
        editing_transfer_index: Tensor,
        post_steps: int,
        max_post_steps: int,
        finished: Tensor,
    ) -> bool:
        """Whether the block takes another step: some row has open positions, or a stage that still revises it.

        A callback that opens positions again in the last step of a block comes too late.
        """
        if self._sampler is None:
            again: bool = super().check_block_should_continue(
                step_idx=step_idx,
                masks_remaining=masks_remaining,
                editing_enabled=editing_enabled,
                editing_transfer_index=editing_transfer_index,
                post_steps=post_steps,
                max_post_steps=max_post_steps,
                finished=finished,
            )
            return again
        if self._block is None or bool(finished.all()) or (not masks_remaining and post_steps > max_post_steps):
            return False
        self._block.finished = finished.cpu().numpy()
        return self._block.live


def _finished_rows(
    cur_x: Tensor,
    sampled_tokens: Tensor,
    final_transfer: Tensor,
    finished: Tensor,
    eos_token_id: int,
    mask_token_id: int,
    prompt_length: int,
) -> Tensor:
    """Finished rows [B]: there is an end token after the prompt, and no open position before it.

    diffusers' own rule also requires that the step committed an end token and that the prompt has none.
    """
    generated = cur_x[:, prompt_length:]
    ended = (generated == eos_token_id).cumsum(1) > 0
    before = (generated == mask_token_id).cumsum(1) > 0
    return finished | (ended & ~before).any(1)


def _resolve_spec(spec: str) -> MaskedSampler:
    """The sampler; raises SpecError if it needs more than the logits of a block."""
    sampler = registry.resolve(spec, "masked")
    hint = f"use PardecPipeline.from_pretrained(name)(..., sampler={spec!r})"
    if Trait.STORES_KV in sampler.traits:
        raise SpecError(f"{spec!r} needs the cache {sampler.spec.cache}, and a scheduler has none", hint=hint)
    if sampler.inputs or sampler.traits & {Trait.LEAVE_ONE_OUT, Trait.COMPARES_FINISHED_TEXT}:
        raise SpecError(f"{spec!r} has a stage that runs the model itself, which a scheduler cannot", hint=hint)
    return sampler
