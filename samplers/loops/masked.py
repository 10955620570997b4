"""The masked loop: diffusion language models filled in block by block, every row at its own pace.

One step: the schedule's clock, the cache's positions, the forward (one a group of rows that ask alike), then logits,
propose, select, widen, commit, finish. The loop alone keeps three promises: the first forward of a request is full, an
open row commits at least one position a step, and the mask id is never committed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pardec.models.errors import ModelError
from pardec.models.language_model import LanguageModel
from pardec.samplers.canvas import Canvas
from pardec.samplers.contracts import Ask, Evidence, Remembering, Request, Sampler, Scheduled, take_rows
from pardec.samplers.events import Event, Finished, RowFinished, Started, Step
from pardec.samplers.kernels.law import Law
from pardec.samplers.kernels.rank import best
from pardec.samplers.loops.asking import Asking, Queries
from pardec.samplers.trace import Trace

_LOWEST = torch.finfo(torch.float32).min
_HELD = ("tokens", "commit_step", "commit_score")


def decode(model: LanguageModel, sampler: Sampler, request: Request, *, steps: bool = True) -> Iterator[Event]:
    """Decodes a request, yielding `Started`, then `Step` and `RowFinished` events, and at last `Finished`.

    Without `steps` no `Step` is told, which spares a transfer a step.
    """
    loop = MaskedLoop(model, sampler, request)
    yield loop.started()
    yield from loop.retire()
    while len(loop.canvas):
        was_open = loop.step()
        if steps:
            yield loop.told(was_open)
        yield from loop.retire()
    yield loop.finished()


class MaskedLoop:
    """The state of one request; it dies with it."""

    def __init__(self, model: LanguageModel, sampler: Sampler, request: Request) -> None:
        facts = model.facts
        if facts.mask_id is None:
            raise ModelError(f"{model.name} has no mask token: it is no masked diffusion model")
        block_causal = facts.attention == "block-causal"
        if block_causal and not (request.absolute and request.block_length == facts.block):
            raise ModelError(f"{model.name} decodes in blocks of {facts.block} laid from position 0, and no others")
        self.sampler, self.request = sampler, request
        self.canvas = canvas = Canvas(
            request.canvases,
            request.prompts,
            mask_id=facts.mask_id,
            pad_id=facts.pad_id,
            block_length=request.block_length,
            absolute=request.absolute,
            block_causal=block_causal,
            shift=facts.shift,
            device=model.device,
        )
        self.states: tuple[Any, ...] = tuple(
            stage.start(canvas) if isinstance(stage, Remembering) else None for stage in sampler.stateful
        )
        self.asking = Asking(model, canvas, stores=sampler.cache.stores, cfg=request.cfg)
        self.schedule = sampler.select if isinstance(sampler.select, Scheduled) else None
        self.history: list[Queries] = []
        self.done: dict[int, RowFinished] = {}
        # Finished rows leave the canvas; what they held waits here for the trace.
        self.held = [getattr(canvas, name).cpu().clone() for name in _HELD]
        self.lengths = canvas.total

    # --- one step ---

    @torch.inference_mode()
    def step(self) -> np.ndarray:
        """One forward for every live row, and its commits; what was open before, [B, L + 1] bool."""
        canvas = self.canvas
        cache_state, *states = self.states
        ask = self.plan(cache_state, states)
        evidence = self.look(ask)
        decision = self.decide(evidence, ask, states)
        open_before = canvas.open_host.copy()
        canvas.commit(*decision)
        return open_before

    def plan(self, cache_state: Any, states: list[Any]) -> Ask:
        """The schedule's clock, then the positions to query."""
        if self.schedule is not None:
            self.canvas.skip(self.schedule.tick(self.canvas, states[len(self.sampler.logits)]))
        return self.sampler.cache.ask(self.canvas, cache_state)

    def look(self, ask: Ask) -> Evidence:
        """The forward, and what it says of the active block."""
        canvas = self.canvas
        queries = self.asking.queries(ask)
        self.history.append(queries)
        law = self.asking.law(queries)
        law.rows[..., canvas.mask_id] = -torch.inf
        return Evidence(law, canvas.window, canvas.eligible, self.request)

    def decide(self, evidence: Evidence, ask: Ask, states: list[Any]) -> tuple[Tensor, Tensor, Tensor]:
        """Which positions of the active block are committed, to which tokens, with what scores; each [B, W]."""
        canvas, sampler = self.canvas, self.sampler
        waiting = iter(states)
        for stage in sampler.logits:
            changed = stage.logits(evidence, canvas, next(waiting))
            evidence = Evidence(Law(changed), evidence.positions, evidence.eligible, self.request)
        proposal = sampler.propose.propose(evidence, canvas)
        chosen = sampler.select.select(proposal, canvas, next(waiting))
        for widen in sampler.widen:
            chosen = widen.widen(chosen, proposal, canvas, next(waiting))
        chosen = chosen & evidence.eligible
        if chosen.device.type != "cpu" or not chosen.numpy().any(1).all():
            # A method may score -inf for "last"; what is open still comes before what is not.
            score = proposal.score.clamp(min=_LOWEST).masked_fill(~evidence.eligible, -torch.inf)
            chosen = chosen | (best(score) & ~chosen.any(1, keepdim=True))
        if ask.must is not None:
            must = torch.from_numpy(ask.must).to(chosen.device)[:, None] & evidence.eligible[:, :1]
            first = torch.arange(chosen.shape[1], device=chosen.device) == 0
            chosen = torch.where(must, first, chosen)
        return chosen, proposal.tokens, proposal.score

    # --- rows that end ---

    def retire(self) -> Iterator[RowFinished]:
        """Lets finished rows leave: the canvas, the cache and every state keep the others only."""
        canvas = self.canvas
        stopped = np.zeros(len(canvas), dtype=bool)
        for finish in self.sampler.finish:
            stopped |= finish.done(canvas, self.request)
        over = canvas.finished | stopped
        if not over.any():
            return
        if (stopped & ~canvas.finished).any():
            canvas.close(stopped)
        for at in np.flatnonzero(over):
            row = int(canvas.rows[at])
            for held, name in zip(self.held, _HELD, strict=True):
                held[row] = getattr(canvas, name)[at].cpu()
            tokens = self.held[0][row, : self.lengths[row]].numpy().copy()
            self.done[row] = RowFinished(row, tokens, "stop" if stopped[at] else "length", int(canvas.nfe[at]))
            yield self.done[row]
        keep = np.flatnonzero(~over)
        canvas.keep(keep)
        self.asking.keep(keep)
        self.states = tuple(take_rows(state, keep) for state in self.states)

    # --- what is told ---

    def started(self) -> Started:
        canvas = self.canvas
        return Started(
            canvas.tokens_host[:, : canvas.length].copy(), canvas.open_host[:, : canvas.length].copy(), canvas.prompt
        )

    def told(self, open_before: np.ndarray) -> Step:
        """The step just made; copies, so that it may be kept."""
        canvas = self.canvas
        still = canvas.open_host[:, : canvas.length]
        return Step(
            number=len(self.history) - 1,
            rows=canvas.rows,
            nfe=canvas.nfe,
            tokens=canvas.tokens_host[:, : canvas.length].copy(),
            open=still.copy(),
            committed=open_before[:, : canvas.length] & ~still,
        )

    def finished(self) -> Finished:
        tokens, commit_step, commit_score = (held[:, :-1].numpy() for held in self.held)
        count = len(tokens)
        fed: list[list[range | tuple[int, ...]]] = [[] for _ in range(count)]
        for queries in self.history:
            for at, row in enumerate(queries.rows):
                fed[row].append(queries.of(at))
        ends = [self.done[row] for row in range(count)]
        copies = self.asking.copies
        return Finished(
            tokens=tokens,
            reasons=tuple(end.reason for end in ends),
            nfe=tuple(end.nfe for end in ends),
            forward_rows=tuple(end.nfe * copies for end in ends),
            tokens_fed=tuple(copies * sum(map(len, row)) for row in fed),
            trace=Trace(tokens, commit_step, commit_score, self.lengths, tuple(map(tuple, fed))),
        )
