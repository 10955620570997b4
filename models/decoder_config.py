"""The shape of the native stack. No torch here: a family is recognised by its config alone."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, get_args

from .errors import ModelError

_LARGEST = 2**30  # bound of every size

Activation = Literal["silu", "gelu", "gelu_tanh"]
Scores = Literal["softmax", "sigmoid"]


@dataclass(frozen=True, slots=True)
class ExpertsConfig:
    """The sparse MLP of a stack: a router chooses `top` of `count` experts for each token and weighs their outputs."""

    count: int  # E
    top: int  # k
    width: int  # inner units of an expert
    sparse: tuple[bool, ...]  # per layer: True for experts, False for one dense MLP of `mlp_width`
    scores: Scores = "softmax"  # how the router's logits become scores, over all experts
    normalize: bool = True  # the weights of the chosen are divided by their sum
    scale: float = 1.0  # ... and the quotients multiplied by this
    bias: Literal["", "choice", "weights"] = ""  # a bias per expert enters the choice alone, or the weights as well
    groups: int = 1  # the experts compete in groups, whose score is the sum of their two best
    top_groups: int = 1  # groups whose experts can be chosen
    shared_width: int = 0  # inner units of an expert that every token takes, unweighted
    pool: int = 0  # number of experts that a block's tokens share, by highest score in the block; 0: all experts
    pool_block: int = 0  # tokens of such a block, counted from position 0

    def __post_init__(self) -> None:
        for name in ("count", "top", "width", "groups", "top_groups"):
            _check_size(f"experts: {name}", getattr(self, name))
        if self.top > self.count:
            raise ModelError(f"a token cannot choose {self.top} of {self.count} experts")
        if self.count % self.groups or self.top_groups > self.groups:
            raise ModelError(f"a token cannot choose {self.top_groups} of {self.groups} groups of {self.count} experts")
        if self.top > self.top_groups * (self.count // self.groups):
            raise ModelError(
                f"{self.top_groups} groups of {self.count // self.groups} experts have fewer than"
                f" the {self.top} that a token chooses"
            )
        if self.scores not in get_args(Scores):
            raise ModelError(f"scores of experts must be one of {', '.join(get_args(Scores))}, got {self.scores!r}")
        if not math.isfinite(self.scale):
            raise ModelError(f"the experts' scale must be a finite number, got {self.scale!r}")
        if self.pool and not (self.top <= self.pool <= self.count and self.pool_block > 0):
            raise ModelError(
                f"a pool of {self.pool} of {self.count} experts for {self.pool_block} tokens is not possible"
            )


@dataclass(frozen=True, slots=True)
class AttentionConfig:
    """The attention settings of one layer, where the layers of a stack differ."""

    frequencies: tuple[float, ...]
    rope_scale: float = 1.0
    window: int | None = None  # a query sees positions less than this far from its own; None: all
    head_dim: int | None = None  # None: the stack's
    kv_heads: int | None = None
    query_scale: float = 1.0
    values_from_keys: bool = False  # a value is its key, before norm and rotation


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """Shape of a stack. `frequencies` are the rotary ones, one per rotated pair, already scaled."""

    vocab: int
    width: int  # E
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp_width: int
    norm_eps: float
    frequencies: tuple[float, ...]  # R/2 of them; R < head_dim rotates the leading R dimensions only
    rope_scale: float = 1.0
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False  # RMSNorm of each head's query and key before rotation
    tied: bool = False  # the head is the embedding
    grid: int | None = None  # tokens along a side of an image: positions are row and column, `frequencies` of each
    activation: Activation = "silu"  # activation of the MLP's gate
    embedding_scale: float = 1.0  # the embeddings of tokens are multiplied by it
    clip_qkv: float | None = None  # queries, keys and values are clamped to it, before rotation
    experts: ExpertsConfig | None = None  # the experts of layers whose MLP is sparse
    window: int | None = None  # a query sees positions less than this far before its own; None: all
    query_scale: float = 1.0  # factor of queries, in addition to 1 / sqrt(head_dim)
    query_growth: tuple[float, int] | None = None  # (b, n): queries times 1 + b log(1 + position // n)
    attention_cap: float | None = None  # scores s become cap * tanh(s / cap)
    attention_sink: bool = False  # the softmax divides by one plus the sum of the exponentials
    logit_cap: float | None = None  # the same cap for logits
    post_norms: bool = False  # RMSNorm of the outputs of attention and MLP, before they are added
    values_from_keys: bool = False  # a value is its key, before norm and rotation
    head_norms: bool = False  # Chameleon: LayerNorm of each head's query and key; no other option but `post_norms`
    canvas: bool = False  # DiffusionGemma's layers: separate scales for text and canvas; MLP and experts are added
    each: tuple[AttentionConfig, ...] = ()  # the attention of each layer, where they differ

    def __post_init__(self) -> None:
        for name in ("vocab", "width", "layers", "heads", "kv_heads", "head_dim", "mlp_width"):
            _check_size(name, getattr(self, name))
        values = (self.norm_eps, self.rope_scale, self.embedding_scale, self.query_scale, *self.frequencies)
        if not all(isinstance(value, int | float) and math.isfinite(value) for value in values):
            raise ModelError(f"norm_eps ({self.norm_eps!r}) or the rotary frequencies are not finite")
        if self.activation not in get_args(Activation):
            raise ModelError(f"activation must be one of {', '.join(get_args(Activation))}, got {self.activation!r}")
        if self.heads % self.kv_heads:
            raise ModelError(f"{self.heads} heads cannot share {self.kv_heads} key/value heads evenly")
        rotated = 2 * len(self.frequencies) * (1 if self.grid is None else 2)
        if rotated > self.head_dim:
            raise ModelError(f"{rotated} rotated dimensions do not fit a head of {self.head_dim}")

        if self.attention_sink and self.attention_cap is not None:
            raise ModelError(f"attention_cap={self.attention_cap} and attention_sink cannot be combined")
        if self.each and len(self.each) != self.layers:
            raise ModelError(f"`each` describes {len(self.each)} layers, and the decoder has {self.layers}")
        if self.experts is not None and len(self.experts.sparse) != self.layers:
            raise ModelError(
                f"`experts.sparse` has {len(self.experts.sparse)} entries, and the decoder has {self.layers} layers"
            )

    @property
    def least_window(self) -> int | None:
        """The narrowest window of a layer; None where every layer sees all positions."""
        windows = [own.window for own in self.each] or [self.window]
        return min((window for window in windows if window is not None), default=None)

    def of(self, layer: int) -> DecoderConfig:
        """The configuration of one layer: the stack's, with the layer's own attention settings."""
        if not self.each:
            return self
        own = self.each[layer]
        return replace(
            self,
            each=(),
            layers=1,
            experts=None if self.experts is None else replace(self.experts, sparse=(self.experts.sparse[layer],)),
            frequencies=own.frequencies,
            rope_scale=own.rope_scale,
            window=own.window,
            head_dim=own.head_dim or self.head_dim,
            kv_heads=own.kv_heads or self.kv_heads,
            query_scale=self.query_scale * own.query_scale,
            values_from_keys=own.values_from_keys,
        )

    def is_sparse(self, layer: int) -> bool:
        """Whether the MLP of this layer is made of experts."""
        return self.experts is not None and self.experts.sparse[layer]

    def fused_rows(self, name: str) -> tuple[int, ...]:
        """Rows of each published tensor in the fused parameter `name`, such as "layers.0.qkv_weight"."""
        if self.each and name.startswith("layers."):
            return self.of(int(name.split(".")[1])).fused_rows(name.rsplit(".", 1)[-1])
        part = name.rsplit(".", 1)[-1].rsplit("_", 1)[0]
        if part == "qkv":
            kinds = (self.heads, self.kv_heads) if self.values_from_keys else (self.heads, self.kv_heads, self.kv_heads)
            return tuple(heads * self.head_dim for heads in kinds)
        widths = {"gate_up": self.mlp_width}
        if self.experts is not None:
            widths |= {"experts_gate_up": self.experts.width, "shared_gate_up": self.experts.shared_width}
        return (widths[part],) * 2 if part in widths else ()


def _check_size(name: str, size: object) -> None:
    if not isinstance(size, int) or isinstance(size, bool) or size > _LARGEST:
        raise ModelError(f"{name} must be a whole number of at most {_LARGEST}, got {size!r}")
    if size < 1:
        raise ModelError(f"{name} must be at least 1, got {size}")
