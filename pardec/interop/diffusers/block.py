"""The masked loop over one block whose logits are passed in."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pardec.models.caches.kv_cache import KVCache
from pardec.models.errors import SpecError
from pardec.models.model import DecodingConfig, LanguageModel
from pardec.models.plan import Hidden, Plan
from pardec.samplers.masked.contracts import Canvas, MaskedSampler, Proposal, Request, Widen
from pardec.samplers.masked.loop import MaskedLoop
from pardec.samplers.ops.rank import top
from pardec.samplers.rng import Keyed

from .callbacks import RecordStep, StepView


@dataclass(frozen=True)
class EvenShare(Widen):
    """Commits at least an even share of the open positions per remaining step."""

    steps: int

    def widen(self, chosen: Tensor, proposal: Proposal, canvas: Canvas, state: None) -> Tensor:
        share = -(-canvas.block_remaining // np.maximum(self.steps - canvas.step, 1))
        score = proposal.score.masked_fill(chosen & proposal.eligible, torch.inf)
        return chosen | top(score, torch.from_numpy(share).to(chosen.device)[:, None])


class ProvidedLogits:
    """A decoder that returns logits from outside instead of running a model."""

    logits: Tensor  # [n, W, V], live rows

    @property
    def embedding(self) -> Tensor:
        raise SpecError("the sampler needs the model's embeddings, which a scheduler lacks", hint="use PardecPipeline")

    def __call__(self, plan: Plan, cache: KVCache | None = None) -> Hidden:
        if plan.tokens.shape != self.logits.shape[:2]:
            raise SpecError(
                f"the sampler computes positions of shape {list(plan.tokens.shape)}, and a scheduler has only "
                f"the logits of a block of shape {list(self.logits.shape[:2])}",
                hint="use PardecPipeline",
            )
        return Hidden(plan, self.logits, lambda states: states)

    def new_cache(self, batch: int, capacity: int) -> KVCache:
        raise SpecError("the sampler needs a cache, which a scheduler lacks", hint="use PardecPipeline")

    def parameters(self) -> tuple[Tensor, ...]:
        return ()

    def named_parameters(self) -> tuple[tuple[str, Tensor], ...]:
        return ()


class Block:
    """The masked loop over one block."""

    def __init__(
        self,
        sampler: MaskedSampler,
        sample: Tensor,
        mask_id: int,
        vocab: int,
        source: Keyed,
        distribution: dict[str, Any],
        prompt: Tensor | None,
    ) -> None:
        """Positions that are neither masked nor in `prompt` ([W] bool) count as committed and may be revised."""
        rows, width = sample.shape
        self.decoder = ProvidedLogits()
        decoding_config = DecodingConfig(mask_id, (), 0, None, 0, "bidirectional")
        model = LanguageModel(
            self.decoder,
            decoding_config,
            config={},
            tokenizer=None,
            name="the pipeline's model",
            path=None,
            family="handed",
            device=sample.device,
            dtype=torch.float32,
            vocab_size=vocab,
            layers=1,
            width=vocab,
        )
        self.views: list[StepView] = []
        traced = replace(sampler, widen=(*sampler.widen, RecordStep(self.views)))
        canvases = tuple(sample.cpu().clone())
        self.loop = MaskedLoop(
            model, traced, Request(canvases, (0,) * rows, width, source, absolute=True, **distribution)
        )
        committed = sample != mask_id if prompt is None else (sample != mask_id) & ~prompt
        self.loop.canvas.commit_step[:, :-1].masked_fill_(committed, 0)
        self.block_tokens = sample.clone()
        self.finished = np.zeros(rows, dtype=bool)
        list(self.loop.retire())

    @property
    def live(self) -> bool:
        """Whether a row that has not ended has open positions, or a stage that still revises it."""
        return bool((~self.finished[self.loop.canvas.rows]).any())

    def continues(self, sample: Tensor) -> bool:
        """Whether `sample` equals the output of the last step in every row that has not ended."""
        if sample.shape != self.block_tokens.shape:
            return False
        return not ((sample != self.block_tokens).any(1).cpu().numpy() & ~self.finished).any()

    def step(self, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens of the block after the step, and each candidate's probability and token; [B, W] each."""
        live = torch.from_numpy(self.loop.canvas.rows).to(logits.device)
        probability, tokens = logits.float().softmax(-1).max(-1)
        self.block_tokens = self.block_tokens.clone()  # the caller has the previous tensor
        if len(live):
            self.decoder.logits = logits[live].float()
            self.loop.step()
            self.block_tokens[live] = self.loop.canvas.tokens[:, :-1]
            proposal = self.views[0].proposal
            probability[live] = proposal.evidence.filtered.probability(proposal.tokens)
            tokens[live] = proposal.tokens
            list(self.loop.retire())
        return self.block_tokens, probability, tokens
