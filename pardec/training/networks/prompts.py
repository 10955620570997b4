"""PPD: learned input vectors after a token, whose outputs predict the tokens after the next one.

PPD: Hardware-Aware Parallel Prompt Decoding, https://arxiv.org/abs/2405.18628

    v_1 .. v_s at p + 1 .. p + s see the text up to p and one another in order;  v_j predicts the token at p + j + 1

The target runs them with its own weights, which are frozen; only the vectors learn. Deviates from the authors' recipe:
one vector per step, and vectors are placed after tokens of the answers; the authors cut texts at random.
"""

from __future__ import annotations

from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pardec.models.caches.kv_cache import KVCache
from pardec.models.draft_modules.contracts import DraftFiles
from pardec.models.errors import ModelError
from pardec.models.model import LanguageModel
from pardec.models.plan import Hidden, Plan, Visible

from ..losses import Loss
from ..states import Batch, States
from .contracts import Network, Options, Target


class AnchoredNetwork(Network):
    """Inputs that the target runs after some tokens of its texts, the anchors, to predict the tokens that follow."""

    anchors: ClassVar[float] = 0.15  # largest share of a text's tokens

    def __init__(self, target: Target, options: Options) -> None:
        super().__init__(target, options)
        self.depths = options.heads

    def inputs(self) -> Tensor:
        """The input vectors after an anchor [s, E]."""
        raise NotImplementedError

    def run(self, plan: Plan, cache: KVCache) -> Hidden:
        """The target's forward over these inputs, after the texts in the cache."""
        hidden: Hidden = self.target.model.decoder(plan, cache)
        return hidden

    def _run(self, batch: Batch, anchors: Tensor) -> Tensor:
        """States after the final norm [B, A, s, E] of the inputs after the tokens at `anchors` [B, A]."""
        model, decoder = self.target.model, cast(nn.Module, self.target.model.decoder)
        decoder.requires_grad_(False)
        rows, width, steps, device = len(batch.ids), batch.width, self.depths, self.device
        count = anchors.shape[1] * steps
        cache = model.new_cache(rows, width, scratch=count)
        with torch.no_grad():
            model.decoder(Plan.full(batch.ids, Visible.causal()), cache)
        positions = (anchors[..., None] + 1 + torch.arange(steps, device=device)).flatten(1)
        text, query = torch.arange(width, device=device), torch.arange(count, device=device)
        visible = torch.zeros(rows, count, width + count, dtype=torch.bool, device=device)
        visible[:, :, :width] = text <= anchors.repeat_interleave(steps, 1)[..., None]
        visible[:, :, width:] = (query[:, None] >= query) & (query[:, None] // steps == query // steps)
        plan = Plan(
            torch.full_like(positions, -1),
            positions,
            (width + query).expand(rows, -1),
            Visible.mask(visible),
            torch.full((rows,), width + count, device=device),
            query.expand(rows, -1),
            soft=self.inputs().repeat(anchors.shape[1], 1).expand(rows, -1, -1),
            uniform=width + count,
        )
        training = decoder.training
        decoder.train()
        hidden = self.run(plan, cache)
        decoder.train(training)
        states: Tensor = hidden.normed()
        return states.view(rows, -1, steps, states.shape[-1])

    def loss(self, batch: Batch, divergence: Loss, generator: torch.Generator) -> tuple[Tensor, list[float]]:
        room = (batch.lengths - batch.begins).clamp(min=1)
        count = max(1, int(batch.width * self.anchors))
        shares = torch.rand(len(room), count, generator=generator).to(self.device)
        anchors = batch.begins[:, None] - 1 + (shares * room[:, None]).long()
        states = self._run(batch, anchors)
        head = self.target.head.to(states.dtype)
        total, rates = torch.zeros((), device=self.device), []
        for step in range(self.depths):
            weight = self.options.decay**step
            part, rate = self.compare_after(batch, anchors, 2 + step, states[:, :, step], head, divergence, weight)
            total = total + part
            rates.append(rate)
        return total, rates

    @torch.no_grad()
    def chain(self, batch: Batch, length: int) -> Tensor:
        anchors = torch.arange(batch.width, device=self.device).expand(len(batch.ids), -1)
        states = torch.cat([self._run(batch, part) for part in torch.split(anchors, 32, 1)], 1)
        drafts = F.linear(states, self.target.head.to(states.dtype)).argmax(-1)[..., :length]
        return F.pad(drafts, (0, length - drafts.shape[-1]), value=-1)


class Prompts(AnchoredNetwork):
    kind = "prompts"
    file = "adapter_model.safetensors"
    config_file = "adapter_config.json"

    def __init__(self, target: Target, options: Options) -> None:
        super().__init__(target, options)
        self.vectors = nn.Parameter(torch.zeros(options.heads, target.model.width))

    def prepare(self, states: States) -> None:
        """Initializes the vectors as embeddings of common tokens, as in prompt tuning."""
        common = states.counts(len(self.target.head)).topk(self.depths).indices
        with torch.no_grad():
            self.vectors.copy_(self.target.embedding[common].float())

    def inputs(self) -> Tensor:
        return self.vectors

    def export(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        config: dict[str, Any] = {
            "peft_type": "PROMPT_TUNING",
            "task_type": "CAUSAL_LM",
            "inference_mode": True,
            "num_virtual_tokens": self.depths,
            "num_special_tokens": self.depths,
            "virtual_tokens_per_special_token": 1,
            "token_dim": self.target.model.width,
            "num_layers": self.target.model.layers,
            "num_attention_heads": self.target.shape.heads,
            "num_transformer_submodules": 1,
            "prompt_tuning_init": "TEXT",
            "vt_attention_type": "decoder",
            "aggregation_type": "mean",
        }
        return config, {"prompt_embeddings": self.vectors}

    @classmethod
    def read_shape(cls, files: DraftFiles, target: LanguageModel) -> dict[str, Any]:
        config = files.config
        each, attention = config.get("virtual_tokens_per_special_token", 1), config.get("vt_attention_type", "decoder")
        if each != 1 or str(attention).lower().rpartition(".")[2] != "decoder":
            raise ModelError(
                f"{files.name} has {each} vectors per step and attention {attention!r}, which cannot be trained here",
                "train one with one vector per step and attention 'decoder'",
            )
        return {"heads": int(config["num_special_tokens"])}
