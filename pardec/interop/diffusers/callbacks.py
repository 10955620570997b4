"""Calls diffusers' callback_on_step_end for the steps of pardec's loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from diffusers.callbacks import MultiPipelineCallbacks, PipelineCallback
from torch import Tensor

from pardec.models.errors import SpecError
from pardec.samplers.events import Event, Started, Step
from pardec.samplers.masked.contracts import Canvas, MaskedSampler, Proposal, Widen

TENSORS = ("block_x", "transfer_index", "editing_transfer_index", "sampled_tokens", "sampled_probs", "active_block")


@dataclass
class StepView:
    """The proposal, window and active positions of the loop's last step; [n, W] each, live rows."""

    proposal: Proposal
    window: np.ndarray
    active: np.ndarray
    block_start: np.ndarray  # [n]


@dataclass(frozen=True)
class RecordStep(Widen):
    """A widen stage that adds nothing and records the step."""

    views: list[StepView]

    def widen(self, chosen: Tensor, proposal: Proposal, canvas: Canvas, state: None) -> Tensor:
        self.views[:] = [
            StepView(proposal, canvas.window_host.copy(), canvas.eligible_host.copy(), canvas.block_start.copy())
        ]
        return chosen


class StepCallbacks:
    """Calls the callback after every step, with tensors of LLaDA2Pipeline's names and shapes.

    [B, W] tensors are of each row's own active block; finished rows have padding and no active positions. Values at
    positions that are not active are meaningless.
    """

    def __init__(self, pipeline: Any, callback: Callable[..., Any] | None, names: Sequence[str] | None) -> None:
        if isinstance(callback, (PipelineCallback, MultiPipelineCallbacks)):
            names = callback.tensor_inputs
        self.names = list(("block_x",) if names is None else names)
        unknown = [name for name in self.names if name not in TENSORS]
        if unknown:
            raise SpecError(
                f"callback_on_step_end_tensor_inputs has {unknown}", hint=f"it may have {', '.join(TENSORS)}"
            )
        self.pipeline, self.callback = pipeline, callback
        self.views: list[StepView] = []
        self.block: tuple[int, int] | None = None
        self.step = 0
        self.end = 0  # the end of the furthest block reached

    def with_recorder(self, sampler: MaskedSampler) -> MaskedSampler:
        """The sampler, with a recorder if there is a callback."""
        if self.callback is None:
            return sampler
        return replace(sampler, widen=(*sampler.widen, RecordStep(self.views)))

    def on_event(self, event: Event) -> None:
        """Calls the callback for a step."""
        if self.callback is None:
            return
        if isinstance(event, Started):
            self.tokens = event.tokens.copy()
        elif isinstance(event, Step):
            self.tokens[event.rows] = event.tokens
            (view,) = self.views
            block = int(event.rows[0]), int(view.block_start[0])
            self.step = self.step + 1 if block == self.block else 0
            self.block = block
            self.end = max(self.end, 1 + int(view.window[view.window < self.tokens.shape[1]].max()))
            tensors = {name: self._tensor(name, event, view) for name in self.names}
            block_x = tensors.get("block_x")
            original = None if block_x is None else block_x.clone()
            answer = self.callback(self.pipeline, event.number, self.step, tensors) or {}
            returned = answer.get("block_x", block_x)
            if returned is not None and (original is None or not torch.equal(returned, original)):
                raise SpecError(
                    "the callback changes block_x, which pardec's loop does not support",
                    hint="LLaDA2Pipeline with a PardecScheduler does",
                )

    def _tensor(self, name: str, event: Step, view: StepView) -> Tensor:
        device = self.pipeline.device
        if name == "block_x":
            return torch.from_numpy(self.tokens[:, : self.end].copy()).to(device)
        values: Any
        if name in ("sampled_tokens", "sampled_probs"):
            tokens = view.proposal.tokens
            values = tokens if name == "sampled_tokens" else view.proposal.evidence.filtered.probability(tokens)
        elif name == "active_block":
            values = torch.from_numpy(view.active)
        else:
            flags = event.committed if name == "transfer_index" else event.revised
            flags = np.zeros_like(event.open) if flags is None else flags
            bin_added = np.concatenate([flags, np.zeros_like(flags[:, :1])], 1)
            values = torch.from_numpy(np.take_along_axis(bin_added, view.window, 1))
        result = torch.zeros((len(self.tokens), values.shape[1]), dtype=values.dtype, device=device)
        result[torch.from_numpy(event.rows).to(device)] = values.to(device).clone()
        return result
