"""The seams of the masked loop: what a request holds, what stages see, and the Protocol of each stage.

Stages are immutable. What one remembers over a request is the value its `start` made, handed back to every call;
each tensor or array in it has the live rows first, so that a finished row can leave (`take_rows`).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from pardec.samplers.canvas import Canvas
from pardec.samplers.kernels.law import Law, filtered
from pardec.samplers.rng import Source
from pardec.samplers.spec import Spec


@dataclass(frozen=True)
class Request:
    """What one call of the masked loop decodes. Checked by the caller; lengths are in tokens."""

    canvases: tuple[Tensor, ...]  # per row [L_i] int64: prompt, then mask ids where tokens are to come
    prompts: tuple[int, ...]  # per row: where the generated region, and a prompt-aligned block grid, begins
    block_length: int
    source: Source
    absolute: bool = False  # lay the block grid from position 0 instead of from the prompt's end
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    cfg: float | None = None  # l_u + cfg * (l_c - l_u); None is off
    stop_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class Evidence:
    """What one forward says of the active block, rows aligned to the block. `eligible` marks what may be committed."""

    law: Law  # the model's own distribution, the mask id at -inf
    positions: Tensor  # [B, W] int64 absolute
    eligible: Tensor  # [B, W] bool
    request: Request

    @property
    def logits(self) -> Tensor:
        """[B, W, V] float32."""
        return self.law.logits

    @cached_property
    def filtered(self) -> Law:
        """The distribution that candidates are drawn from: after temperature, top-p and top-k."""
        r = self.request
        if not r.temperature and r.top_k is None and r.top_p is None:
            return self.law
        return Law(filtered(self.logits, temperature=r.temperature, top_k=r.top_k, top_p=r.top_p))

    def draw(self, canvas: Canvas) -> Tensor:
        """A candidate per position, [B, W] int64: the argmax at temperature 0, else a keyed draw from `filtered`."""
        if not self.request.temperature:
            return self.law.greedy[0]
        width = self.logits.shape[-1]
        return self.filtered.draw(self.request.source.uniform(canvas.rows, canvas.step, self.positions, "token", width))

    def propose(self, tokens: Tensor, score: Tensor) -> Proposal:
        """The candidates with their scores where eligible."""
        return Proposal(tokens, score.masked_fill(~self.eligible, -torch.inf), self)


@dataclass(frozen=True, slots=True)
class Proposal:
    """A candidate and its score for every position of the active block; higher is surer."""

    tokens: Tensor  # [B, W] int64
    score: Tensor  # [B, W] float32, -inf where not eligible
    evidence: Evidence

    @property
    def eligible(self) -> Tensor:
        return self.evidence.eligible


@dataclass(frozen=True, slots=True)
class Ask:
    """Which positions a forward queries: [start, stop) of each row, or any set as a mask. Arrays live on the host.

    The loop itself adds the rows whose output predicts the wanted positions (one to the left in shifted families).
    """

    start: np.ndarray  # [B]
    stop: np.ndarray  # [B]
    mask: Tensor | None = None  # [B, L] bool; when given it replaces the span
    must: np.ndarray | None = None  # [B] bool: commit exactly the block's first position if it is open


class Cache(Protocol):
    """Which positions does this forward query? The first forward of a request is full whatever the answer."""

    stores: bool  # False: earlier K/V is never read, so none is kept

    def ask(self, canvas: Canvas, state: Any) -> Ask: ...


class LogitsStage(Protocol):
    """Changes the logits of the active block; [B, W, V] in and out."""

    def logits(self, evidence: Evidence, canvas: Canvas, state: Any) -> Tensor: ...


class Propose(Protocol):
    """A candidate and a score per position."""

    def propose(self, evidence: Evidence, canvas: Canvas) -> Proposal: ...


class Select(Protocol):
    """Which candidates are committed: [B, W] bool. A schedule may also define `tick`, see `Scheduled`."""

    def select(self, proposal: Proposal, canvas: Canvas, state: Any) -> Tensor: ...


@runtime_checkable
class Scheduled(Protocol):
    """A select with a clock: told before each forward, it answers how many idle steps the clock skips, [B]."""

    def tick(self, canvas: Canvas, state: Any) -> np.ndarray: ...


class Widen(Protocol):
    """Adds to what select chose: [B, W] bool in and out."""

    def widen(self, chosen: Tensor, proposal: Proposal, canvas: Canvas, state: Any) -> Tensor: ...


class Finish(Protocol):
    """Which rows are done though positions are open: [B] bool on the host, asked after each commit."""

    def done(self, canvas: Canvas, request: Request) -> np.ndarray: ...


@runtime_checkable
class Checked(Protocol):
    """A stage that cannot go with every other one: raises SpecError when a spec is resolved."""

    def check(self, sampler: Sampler) -> None: ...


@runtime_checkable
class Remembering(Protocol):
    """A stage with a memory: `start` makes the state of one request, which every other call is handed."""

    def start(self, canvas: Canvas) -> Any: ...


@dataclass(frozen=True)
class Sampler:
    """A resolved spec: one object a stage."""

    spec: Spec
    exact: str
    cache: Cache
    logits: tuple[LogitsStage, ...]
    propose: Propose
    select: Select
    widen: tuple[Widen, ...]
    finish: tuple[Finish, ...]

    @property
    def stateful(self) -> tuple[Any, ...]:
        """The stages that are handed a state, in the order the loop keeps states."""
        return (self.cache, *self.logits, self.select, *self.widen)


__all__ = [
    "Ask",
    "Cache",
    "Canvas",
    "Checked",
    "Evidence",
    "Finish",
    "LogitsStage",
    "Proposal",
    "Propose",
    "Remembering",
    "Request",
    "Sampler",
    "Scheduled",
    "Select",
    "Widen",
    "take_rows",
]


def take_rows(value: Any, rows: np.ndarray) -> Any:
    """`value` with only these rows, in this order, in every tensor and array it holds (rows are dimension 0)."""
    if isinstance(value, Tensor):
        return value[torch.as_tensor(rows, device=value.device)]
    if isinstance(value, np.ndarray):
        return value[rows]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        kept = {f.name: take_rows(getattr(value, f.name), rows) for f in dataclasses.fields(value)}
        return dataclasses.replace(value, **kept)
    if isinstance(value, tuple):
        return tuple(take_rows(item, rows) for item in value)
    if isinstance(value, dict):
        return {key: take_rows(item, rows) for key, item in value.items()}
    return value
