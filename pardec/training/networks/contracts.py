"""The interfaces of a trained drafter and of its target."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pardec.models.draft_modules.contracts import DraftFiles
from pardec.models.errors import SpecError
from pardec.models.kernels import layout
from pardec.models.kernels.cpu import library
from pardec.models.model import LanguageModel

from ..losses import Loss
from ..states import Batch, States
from .parts import linear, matrix, repeat_heads, rotary

_LOGITS = {"cpu": 1 << 20}  # made at once: they stay in a processor's cache
_LOGITS_ELSEWHERE = 1 << 28


@dataclass
class Options:
    """The shape of a network and of its loss."""

    vocab: int | None = None  # ids that it drafts; None: all
    layers: int = 1
    mlp_width: int | None = None  # None: the target's
    kv_heads: int | None = None  # None: the target's
    taps: tuple[int, ...] | None = None  # layers whose outputs it reads; None: those of the kind
    heads: int = 4  # medusa and hydra: number of heads; prompts: vectors per node; idlm: masks
    rank: int = 32  # idlm: of the LoRA
    block: int = 8  # dflash: tokens of a block, the anchor included
    unroll: int = 4  # steps of training-time test
    ramp: tuple[float, float] = (0.3, 0.7)  # shares of the run at which steps begin to be added, and all are used
    decay: float = 0.8  # factor of the loss from step to step
    mask_id: int | None = None  # dflash, idlm: the mask token; None: 0, that of the tokenizer
    prompt_share: float = 0.1  # share of the prompts' positions that count
    tied: bool = True  # the target's head is the drafter's where the kind allows it
    start: str = "target"  # where weights come from: "target", "linear" or "random"
    wrong_only: bool = False  # count only positions where the likeliest drafted token is not the target's
    dropout: float = 0.0  # on outputs of attention and MLP, and on the states that are read
    seed: int = 0

    def chosen(self) -> dict[str, Any]:
        """The options that differ from the defaults."""
        values = {entry.name: (getattr(self, entry.name), entry.default) for entry in fields(self)}
        return {name: value for name, (value, default) in values.items() if value != default}


@dataclass
class Target:
    """The frozen parts of the target that a network reads."""

    model: LanguageModel
    stored: Tensor = field(init=False)  # [V, E] the embedding as stored
    embedding: Tensor = field(init=False)  # [V, E], scaled as the target scales it
    head: Tensor = field(init=False)  # [V, E]
    norm: Tensor = field(init=False)  # [E] of the final norm
    dtype: torch.dtype = field(init=False)  # dtype of forwards: float32 where bfloat16 is emulated
    eps: float = field(init=False)
    theta: float = field(init=False)

    def __post_init__(self) -> None:
        decoder: Any = self.model.decoder
        config = self.model.config
        if not hasattr(decoder, "config") or decoder.config.logit_cap is not None:
            raise SpecError(f"drafters of {self.model.name} cannot be trained: its stack is not the native one")
        emulated = self.model.device.type == "cpu" and not library.has_bfloat16()
        self.dtype = torch.float32 if emulated else torch.bfloat16
        self.stored = layout.dense(decoder.embedding.detach()).to(self.dtype)
        scale = self.model.embedding_scale
        self.embedding = self.stored if scale == 1 else self.stored * scale
        self.head = layout.dense(decoder.head.weight.detach()).to(self.dtype)
        self.norm = decoder.norm.weight.detach().float()
        self.eps = float(decoder.config.norm_eps)
        self.theta = float((config.get("rope_parameters") or config).get("rope_theta", 10000.0))

    @property
    def shape(self) -> Any:
        """The shape of its stack: heads, kv_heads, head_dim, mlp_width and so on."""
        decoder: Any = self.model.decoder
        return decoder.config

    def layer(self, index: int) -> dict[str, Tensor]:
        """The matrices of one of its layers in float32, under the published names."""
        decoder: Any = self.model.decoder
        own = decoder.layers[index].named_parameters()
        weights = {name: layout.dense(value.detach()).float() for name, value in own}
        shape = self.shape.of(index % self.model.layers)
        rows = [shape.heads * shape.head_dim, *[shape.kv_heads * shape.head_dim] * 2]
        q, k, v = torch.split(weights["qkv_weight"], rows)
        gate, up = weights["gate_up_weight"].chunk(2)
        return {
            "input_layernorm": weights["attn_norm"],
            "post_attention_layernorm": weights["mlp_norm"],
            "q_proj": q,
            "k_proj": k,
            "v_proj": v,
            "o_proj": weights["out_weight"],
            "gate_proj": gate,
            "up_proj": up,
            "down_proj": weights["down_weight"],
        }


class Network(nn.Module):
    """A drafter in training. Its parameters are float32; its forward computes in the target's `dtype`."""

    kind: ClassVar[str]
    file: ClassVar[str] = "model.safetensors"  # the published weights file
    config_file: ClassVar[str] = "config.json"
    depths: int  # tokens that it learns to draft ahead
    taps: tuple[int, ...] = ()  # layers whose outputs it reads
    progress: float = 1.0  # share of the run that is done

    def __init__(self, target: Target, options: Options) -> None:
        super().__init__()
        self.target, self.options = target, options
        self.compute = target.dtype
        self.ids: Tensor | None = None  # [Vd] the target's id of each id that it drafts
        self.index: Tensor | None = None  # [V] and back; -1 where there is none

    @property
    def device(self) -> torch.device:
        """The target's device, on which training runs."""
        return self.target.embedding.device

    def decoder_config(self, **own: Any) -> dict[str, Any]:
        """The published configuration of a drafter's layers, which have the target's heads; `own` is what differs."""
        shape, target = self.target.shape, self.target
        return {
            "model_type": "llama",
            "num_hidden_layers": 1,
            "num_attention_heads": shape.heads,
            "num_key_value_heads": self.options.kv_heads or shape.kv_heads,
            "head_dim": shape.head_dim,
            "hidden_act": "silu",
            "rms_norm_eps": target.eps,
            "rope_theta": target.theta,
            "max_position_embeddings": target.model.max_positions,
            "attention_bias": False,
            "vocab_size": len(target.head),
            **own,
        }

    def id_tensors(self) -> dict[str, Tensor]:
        """The published tensors that say which ids of the target it drafts; none if it drafts them all."""
        if self.ids is None:
            return {}
        drafted = torch.zeros(len(self.target.head), dtype=torch.bool).index_fill_(0, self.ids.cpu(), True)
        return {"d2t": self.ids - torch.arange(len(self.ids), device=self.device), "t2d": drafted}

    def draft_ids(self, ids: Tensor) -> None:
        """Restricts drafts to these ids of the target [Vd], in this order."""
        self.ids = ids.to(self.device)
        self.index = torch.full((len(self.target.head),), -1, device=self.device)
        self.index[self.ids] = torch.arange(len(ids), device=self.device)

    def prepare(self, states: States) -> None:
        """Initializes the weights of a run, once the draft ids are known."""

    def loss(self, batch: Batch, divergence: Loss, generator: torch.Generator) -> tuple[Tensor, list[float]]:
        """The loss to minimize, and how often the likeliest drafted token is the target's, by depth."""
        raise NotImplementedError

    def chain(self, batch: Batch, length: int) -> Tensor:
        """Greedy drafts [B, W, length]: at t of a text, the tokens from t + 2 on; the token at t + 1 is known."""
        raise NotImplementedError

    def export(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The config and the tensors under their published names."""
        raise NotImplementedError

    @classmethod
    def read_shape(cls, files: DraftFiles, target: LanguageModel) -> dict[str, Any]:
        """The `Options` of the network that exported such files.

        Raises ModelError for a variant that can draft but that this network cannot train.
        """
        raise NotImplementedError

    def load_weights(self, tensors: Mapping[str, Tensor], states: States) -> None:
        """Loads tensors of `export` by their published names; `states` are the training states."""
        with torch.no_grad():
            for name, value in self.export()[1].items():
                if isinstance(value, nn.Parameter):
                    value.copy_(tensors[name])

    def drop(self, x: Tensor) -> Tensor:
        """x, with dropout in training."""
        return F.dropout(x, self.options.dropout, torch.is_grad_enabled()) if self.options.dropout else x

    # -- parts of a loss ---------------------------------------------------------------------------------------------

    def weights(self, batch: Batch, generator: torch.Generator) -> Tensor:
        """[B, W] bool: the tokens whose prediction counts: all of the answers and some of the prompts."""
        order = torch.arange(batch.width, device=batch.ids.device)
        answers = (order >= batch.begins[:, None]) & (order < batch.lengths[:, None])
        some = torch.rand(batch.ids.shape, generator=generator).to(order.device) < self.options.prompt_share
        return answers | (some & (order > 0) & (order < batch.begins[:, None]))

    def draft_head(self) -> Tensor:
        """[Vd, E] the rows of the target's head for the draft ids."""
        return self.target.head if self.ids is None else self.target.head[self.ids]

    def compare(
        self,
        states: Tensor,
        head: Tensor | Callable[[Tensor], Tensor],
        normed: Tensor,
        best: Tensor,
        divergence: Loss,
        weight: float = 1.0,
    ) -> tuple[Tensor, float]:
        """`weight` times the mean loss of N drafted distributions, and how often their likeliest token is the target's.

        Logits are made and differentiated a few rows at a time, so that they are never in memory as a whole; if
        `head` learns, its gradient is computed when this returns.

        Args:
            states: [N, E] the inputs of the draft head.
            head: [Vd, E] that is frozen, or a function that learns.
            normed: [N, E] the target's states after its final norm.
            best: [N] the target's likeliest tokens.
        """
        labels = best if self.index is None else self.index[best]
        weights = torch.ones_like(labels, dtype=torch.float32) if divergence.overlap else (labels >= 0).float()
        weights *= weight / max(1.0, float(weights.sum()))
        own_head = self.draft_head()
        target_head = self.target.head if divergence.overlap else own_head
        learning = torch.is_grad_enabled() and states.requires_grad
        gradient, leaf = torch.zeros_like(states), states.detach()
        total, right = (torch.zeros((), device=states.device) for _ in range(2))
        size = max(1, _LOGITS.get(states.device.type, _LOGITS_ELSEWHERE) // len(own_head))
        for start in range(0, len(states), size):
            part = slice(start, start + size)
            rows, teacher = leaf[part], F.linear(normed[part].to(target_head.dtype), target_head)
            frozen = isinstance(head, Tensor) and divergence.softmax
            rows.requires_grad_(learning and not frozen)
            draft = F.linear(rows, head) if isinstance(head, Tensor) else head(rows)
            same = draft.detach().max(-1).indices == labels[part]
            right += same.sum()
            counts = weights[part] * ~same if self.options.wrong_only else weights[part]
            if isinstance(head, Tensor) and divergence.softmax:
                value, slope = divergence.with_slope(draft, teacher.to(draft.dtype), labels[part], counts)
                gradient[part] = slope @ head
            else:
                value = (divergence(draft, teacher, labels[part], self.ids) * counts).sum()
                if learning:
                    value.backward()  # type: ignore[no-untyped-call]
                    assert rows.grad is not None
                    gradient[part] = rows.grad
            total += value.detach()
        if learning:
            total = _WithGradient.apply(states, total, gradient)  # type: ignore[no-untyped-call]
        return total, float(right) / max(1, len(states))

    def compare_after(
        self,
        batch: Batch,
        anchors: Tensor,
        depth: int,
        states: Tensor,
        head: Tensor,
        divergence: Loss,
        weight: float,
    ) -> tuple[Tensor, float]:
        """`compare` for states [B, A, E] that predict the token `depth` positions after each anchor [B, A]."""
        at = anchors + depth
        chosen = at < batch.lengths[:, None]
        source = (at - 1).clamp(max=batch.width - 1)
        rows = torch.arange(len(at), device=self.device)[:, None].expand_as(source)
        normed, best = batch.normed[rows, source][chosen], batch.best[rows, source][chosen]
        return self.compare(states[chosen], head, normed, best, divergence, weight)


class _WithGradient(torch.autograd.Function):
    """Returns a number whose gradient with respect to `states` is given."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, value: Tensor, gradient: Tensor) -> Tensor:
        ctx.gradient = gradient
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return ctx.gradient * grads[0], None, None


class AttentionNetwork(Network):
    """A network with one attention, whose queries, keys and values are heads of the target's size."""

    def make_attention(self, inputs: int, noise: torch.Generator) -> None:
        """Random weights of an attention that reads states of width `inputs`."""
        shape, width = self.target.shape, self.target.model.width
        self.heads, self.kv_heads, self.head_dim = shape.heads, self.options.kv_heads or shape.kv_heads, shape.head_dim
        rows, kv_rows = self.heads * self.head_dim, self.kv_heads * self.head_dim
        self.q, self.k = matrix(rows, inputs, noise), matrix(kv_rows, inputs, noise)
        self.v, self.o = matrix(kv_rows, inputs, noise), matrix(width, rows, noise)

    def project(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [B, H, T, D] of states [B, T, I] at `positions` [T]."""
        q, k, v = (linear(x, weight).view(*x.shape[:2], -1, self.head_dim) for weight in (self.q, self.k, self.v))
        q, k = (rotary(each, positions, self.target.theta) for each in (q, k))
        return q.transpose(1, 2), repeat_heads(k, self.heads), repeat_heads(v, self.heads)


class HeadsNetwork(Network):
    """One head per depth on the target's state; head j at t, counted from 0, predicts the token at t + 2 + j."""

    def head_states(self, normed: Tensor, tokens: list[Tensor], head: int) -> Tensor:
        """The input of a head's last linear for states [..., E] and the `head` + 1 tokens after each, [...]."""
        raise NotImplementedError

    def head_logits(self, states: Tensor, head: int) -> Tensor:
        """The logits of a head."""
        raise NotImplementedError

    def loss(self, batch: Batch, divergence: Loss, generator: torch.Generator) -> tuple[Tensor, list[float]]:
        counted = self.weights(batch, generator)
        total, rates = torch.zeros((), device=self.device), []
        for head in range(min(self.depths, batch.width - 2)):
            chosen, width = counted[:, 2 + head :], batch.width - 2 - head
            normed, best = (each[:, 1 + head : 1 + head + width][chosen] for each in (batch.normed, batch.best))
            tokens = [batch.ids[:, 1 + at : 1 + at + width][chosen] for at in range(head + 1)]
            states = self.head_states(batch.normed[:, :width][chosen], tokens, head)
            logits = partial(self.head_logits, head=head)
            part, rate = self.compare(states, logits, normed, best, divergence, self.options.decay**head)
            total = total + part
            rates.append(rate)
        return total, rates

    @torch.no_grad()
    def chain(self, batch: Batch, length: int) -> Tensor:
        tokens = [F.pad(batch.ids[:, 1:], (0, 1))]
        for head in range(min(length, self.depths)):
            tokens.append(self.head_logits(self.head_states(batch.normed, tokens, head), head).argmax(-1))
        drafts = torch.stack(tokens[1:], -1)
        return F.pad(drafts, (0, length - drafts.shape[-1]), value=-1)
