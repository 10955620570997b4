"""A loaded checkpoint: the stack that runs plans, and the configuration that decoding needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import lcm
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from .caches.kv_cache import KVCache
from .caches.prefix_cache import PrefixCache
from .caches.reuse_cache import LayerReuse, ReuseCache
from .caches.skip_cache import EarlySkip, SkipCache
from .cuda_graphs.runner import native, plain_decoder
from .errors import CacheError, CapacityError, ModelError, SpecError
from .kernels.cpu.blocks import BlockWeight
from .kv_stores.cache import StoredCache
from .kv_stores.contracts import Store
from .layers.quantize import weight_bytes
from .plan import Hidden, IdSubset, Plan, Visible
from .stack import Stack

if TYPE_CHECKING:
    from .images.contracts import CodeImaging

_PREFIX_BLOCK = 16  # tokens, stored together

Attention = Literal["bidirectional", "block-causal", "windowed-causal", "causal-prefix", "causal"]


@dataclass(frozen=True, slots=True)
class BlockDenoising:
    """The settings by which a causal model also fills a block of masks after a text."""

    mask_id: int
    shift: Literal[0, 1]  # the logits for position p of the block stand at p - shift


@dataclass(frozen=True, slots=True)
class DecodingConfig:
    """Settings of decoding that a family and a checkpoint fix."""

    mask_id: int | None
    eos_ids: tuple[int, ...]
    pad_id: int
    bos_id: int | None
    shift: Literal[0, 1]  # the logits for position p stand at p - shift
    attention: Attention
    block: int | None = None  # width of a block, where the checkpoint has one; that of block-causal models is fixed
    sources: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)  # where each value was found
    uniform: bool = False  # a canvas of random tokens instead of masks; `mask_id` then marks what is open, never fed
    anchors: tuple[int, ...] = ()  # fixed after an answer, in a canvas of `block` tokens that is filled to its end
    denoising: BlockDenoising | None = None  # set for a causal model whose weights can denoise blocks, too

    @property
    def masked(self) -> bool:
        """Whether this is a masked (diffusion) model, filled in any order, rather than an AR one."""
        return self.mask_id is not None and self.attention != "causal"


@dataclass(slots=True, eq=False)
class LanguageModel:
    """A checkpoint ready to run. Made by `pardec.models.load.load`."""

    decoder: Stack
    decoding_config: DecodingConfig
    config: dict[str, Any]  # as published
    tokenizer: Any | None  # a transformers tokenizer; None if the checkpoint has none
    name: str
    path: Path | None
    family: str
    device: torch.device
    dtype: torch.dtype
    vocab_size: int
    layers: int
    width: int
    max_positions: int | None = None  # the length the checkpoint was made for
    limit: int | None = None  # later positions are refused: they would be computed wrongly (a sliding window ends)
    choice: str = field(default="", repr=False)  # why this device and dtype
    recognized: str = field(default="", repr=False)  # the part of its files by which its family was recognised
    imaging: CodeImaging | None = field(default=None, repr=False)  # set for an image model
    quantized: str | None = None  # the type its linear layers are quantized to
    processes: int = 1  # number of processes that share the model
    whole: int | None = field(default=None, repr=False)  # parameters of the checkpoint, where this process has a share
    embedding_scale: float = field(default=1.0, repr=False)
    adapter: str | None = None  # the LoRA adapter that is merged into its weights
    generation: Mapping[str, Any] = field(default_factory=dict, repr=False)  # generation_config.json, else config.json
    prepared: dict[str, Any] = field(default_factory=dict, init=False, repr=False)  # values that requests keep
    draft_modules: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)  # loaded for this model
    prefix_cache: PrefixCache | None = field(default=None, init=False, repr=False)  # K/V kept for later requests
    head_read: bool = field(default=False, init=False, repr=False)  # its weights are finite: see `finite.demand_head`

    @property
    def subset(self) -> IdSubset | None:
        """The ids that its head computes logits of, where it was trimmed; else None."""
        return getattr(self.decoder, "subset", None)

    @property
    def weights_version(self) -> int:
        """How often its weights were replaced in place: keys and values of an earlier version are stale."""
        return int(getattr(self.decoder, "weights_version", 0))

    @property
    def parameters(self) -> int:
        """The number of the checkpoint's parameters; a tied head counts once."""
        if self.whole is not None:
            return self.whole
        return sum(weight.numel() for weight in self.decoder.parameters())

    @property
    def weight_bytes(self) -> int:
        """Bytes of memory that the parameters take in this process."""
        return weight_bytes(self.decoder.parameters())

    @property
    def activations(self) -> str | None:
        """What its block-quantized weights multiply, "float32" or "int8"; None for a model that has none of these."""
        own = (weight.activations for weight in self.decoder.parameters() if isinstance(weight, BlockWeight))
        return next(own, None)

    @property
    def packed(self) -> bool:
        """Whether matrices are in memory as the blocks of its GGUF file."""
        return self.quantized is None and self.activations is not None

    @property
    def codebook(self) -> Tensor | None:
        """[codes, C] float32: the vector of each code of an image model; None without an image tokenizer."""
        return None if self.imaging is None else self.imaging.codebook

    def masks(self, tokens: Tensor) -> Tensor | None:
        """Which of `tokens` are the mask token, bool of their shape; None for a model that has none."""
        mask = self.decoding_config.mask_id
        return None if mask is None else tokens == mask

    @property
    def follows_canvas(self) -> bool:
        """Whether the attention pattern depends on how far a canvas is filled."""
        return self.decoding_config.attention in ("windowed-causal", "causal-prefix")

    def visible(self, masks: Tensor | None = None, begin: Tensor | None = None) -> Visible:
        """The attention pattern of the family.

        Two kinds of attention follow the canvas; without its state they are causal.

        Args:
            masks: [B, C] bool, the slots of masks. Windowed-causal attention sees them after all others, each part in
                the order of positions.
            begin: [B] where the active block begins. With a causal prefix all of it sees what is before it, and itself.
        """
        attention = self.decoding_config.attention
        if attention == "bidirectional":
            return Visible.bidirectional()
        if attention == "block-causal":
            return Visible.segments(self.decoding_config.block)
        if attention == "causal" or masks is None:
            return Visible.causal()
        order = torch.arange(masks.shape[1], device=masks.device)
        if attention == "windowed-causal":
            return Visible.segments(ids=torch.where(masks, order + masks.shape[1], order))
        return Visible.causal() if begin is None else Visible.segments(ids=order.minimum(begin[:, None]), begin=begin)

    def rows(self, positions: Tensor) -> Tensor:
        """The query whose logits predict each position: itself, or the one before for a shifted family (0 stays 0)."""
        return positions if self.decoding_config.shift == 0 else (positions - self.decoding_config.shift).clamp(min=0)

    def embed(self, weights: Tensor) -> Tensor:
        """Mixtures of input embeddings: weights [..., V] -> [..., E]."""
        table = self.decoder.embedding
        mixed = weights.to(table.dtype) @ table[: weights.shape[-1]]
        return mixed if self.embedding_scale == 1 else mixed * self.embedding_scale

    def embed_mixture(self, tokens: Tensor, weights: Tensor) -> Tensor:
        """Mixtures of the input embeddings of a few tokens: ids and weights [..., K] -> [..., E]."""
        table = self.decoder.embedding
        mixed = (table[tokens] * weights.to(table.dtype)[..., None]).sum(-2)
        return mixed if self.embedding_scale == 1 else mixed * self.embedding_scale

    def new_cache(
        self,
        batch: int,
        capacity: int,
        *,
        scratch: int = 0,
        shared: int = 0,
        store: Store | None = None,
        reuse: LayerReuse | EarlySkip | None = None,
        captured: bool = True,
    ) -> KVCache:
        """An empty cache. Raises CapacityError past the length to which this checkpoint can be run faithfully.

        `scratch` more slots are for tree drafts, whose nodes take more slots than positions. The first `shared` slots
        are in memory once for all rows: CacheError says where they cannot be. With a `store` only the newest slots are
        kept as they are, and none can be shared. With `reuse`, layers keep what they computed of a query as well.
        If not `captured`, forwards over it are no CUDA graphs, and another cache may use its memory as its own.
        """
        if self.limit is not None and capacity > self.limit:
            raise CapacityError(
                f"{self.name} supports up to {self.limit} positions, and {capacity} are requested",
                f"keep prompt and generation within {self.limit} positions: its attention changes after that",
            )
        if reuse is not None:
            return self._reuse_cache(reuse, batch, capacity + scratch)
        if store is not None:
            return self._stored_cache(store, batch, capacity, scratch)
        if not shared:
            stack = self.decoder if captured else native(self.decoder) or self.decoder
            return stack.new_cache(batch, capacity + scratch)
        if (reason := self.shared_prefix_off_reason) is not None:
            raise CacheError(
                f"rows of {self.name} cannot share their first {shared} slots: {reason}",
                "make the cache without shared slots",
            )
        plain = plain_decoder(self.decoder)
        assert plain is not None, "others have a reason"
        return plain.new_cache(batch, capacity + scratch, shared)

    def _reuse_cache(self, reuse: LayerReuse | EarlySkip, batch: int, capacity: int) -> KVCache:
        if self.processes > 1:
            what = "compares the values of all heads" if isinstance(reuse, LayerReuse) else "compares states of layers"
            raise ModelError(
                f"this cache {what}, and each process of {self.name} has a part of them",
                "use another cache, or one process",
            )
        # Only the native stack without graphs can do this: layers compute different numbers of queries.
        plain = (native(self.decoder) or self.decoder).new_cache(batch, capacity)
        if isinstance(reuse, EarlySkip):
            return SkipCache(plain, reuse, width=self.width)
        return ReuseCache(plain, reuse, width=self.width, version=self.weights_version)

    def _stored_cache(self, store: Store, batch: int, capacity: int, scratch: int) -> KVCache:
        stack = native(getattr(self.decoder, "base", self.decoder))
        if store.before_rotation and stack is None:
            raise ModelError(
                f"{self.name} does not expose its rotary embedding, and this cache encodes keys before the rotation",
                "use a cache that encodes rotated keys, such as kivi",
            )
        ropes = None if stack is None else stack.ropes()
        return StoredCache(self.decoder.new_cache(batch, 1), store, capacity + scratch, scratch=scratch, ropes=ropes)

    @property
    def shared_prefix_off_reason(self) -> str | None:
        """Why rows with a common prefix cannot share its K/V in memory; None where they can."""
        if self.decoding_config.attention != "causal":
            return "its attention is not causal"
        if self.imaging is not None:
            return "its rows begin with the condition of an image, which is no token"
        if self.processes > 1:
            return "processes share it"
        stack = plain_decoder(self.decoder)
        if stack is None:
            return "its forwards are not those of the native decoder, or use CUDA graphs"
        if stack.config.least_window is not None or stack.config.canvas or stack.config.attention_sink:
            return "a layer has a sliding window, a canvas or an attention sink"
        return None

    @property
    def prefix_off_reason(self) -> str | None:
        """Why K/V of a prefix cannot be reused for other texts that begin with it; None where they can."""
        if self.decoding_config.attention == "bidirectional":
            return "its attention is bidirectional, so that keys and values of a prompt change with the tokens after it"
        if self.imaging is not None:
            return "its rows begin with the condition of an image, which is no token"
        if self.processes > 1:
            return "processes share it, and each would evict by the size of its own part"
        return None

    def cache_prefixes(self, budget: int) -> PrefixCache | None:
        """Starts an empty `prefix_cache` of `budget` bytes; 0 ends it. Raises SpecError where there can be none."""
        if budget and (reason := self.prefix_off_reason) is not None:
            raise SpecError(f"{self.name} cannot reuse prefixes: {reason}", "leave the prefix cache off")
        block = lcm(_PREFIX_BLOCK, self.decoding_config.block or 1)  # K/V of an incomplete block are not final
        self.prefix_cache = PrefixCache(budget, block) if budget else None
        return self.prefix_cache

    @torch.inference_mode()
    def forward(self, plan: Plan, cache: KVCache | None = None) -> Hidden:
        """Run one forward. Raises ModelError, CacheError or CapacityError for errors that the host can see."""
        self._check(plan, cache)
        return self.decoder(plan, cache)

    def run(self, plan: Plan, cache: KVCache | None = None) -> Hidden:
        """`forward` without checks, in inference mode: the plan differs from a checked one only in tokens and wants."""
        return self.decoder(plan, cache)

    def describe(self) -> str:
        """Where and how the model runs, and why, in one line."""
        known = f"{self.name}: {self.family}" + (f" by {self.recognized}" if self.recognized else "")
        version = f", weights version {self.weights_version}" if self.weights_version else ""
        return (f"{known}, {self.choice}" if self.choice else known) + version

    def _check(self, plan: Plan, cache: KVCache | None) -> None:
        shape, batch = plan.tokens.shape, plan.tokens.shape[0]
        if len(shape) != 2 or plan.positions.shape != shape or plan.slots.shape != shape:
            raise ModelError(
                f"tokens {list(shape)}, positions {list(plan.positions.shape)} and slots {list(plan.slots.shape)} "
                "must agree on [B, Q]"
            )
        if plan.lengths.shape != (batch,) or plan.want.dim() != 2 or plan.want.shape[0] != batch:
            got = f"{list(plan.lengths.shape)} and {list(plan.want.shape)}"
            raise ModelError(f"lengths must be [{batch}] and want [{batch}, K], got {got}")
        if plan.tokens.device.type != self.device.type:
            raise ModelError(f"the plan is on {plan.tokens.device} and {self.name} on {self.device}")
        if plan.soft is not None and plan.soft.shape != (*shape, self.width):
            raise ModelError(f"soft must be {[*shape, self.width]}, got {list(plan.soft.shape)}")
        if plan.span is not None and plan.span[1] - plan.span[0] != shape[1]:
            raise ModelError(
                f"span {plan.span} covers {plan.span[1] - plan.span[0]} positions and the plan has {shape[1]} queries"
            )
        if plan.tokens.device.type == "cpu":
            low, high = plan.tokens.aminmax() if plan.tokens.numel() else (0, 0)
            if low < 0 or high >= self.vocab_size:
                raise ModelError(f"token ids must lie in 0..{self.vocab_size - 1}, got {int(low)}..{int(high)}")
        _check_visible(plan)
        self._check_parts(plan)
        if cache is not None:
            if len(cache.k) != self.layers:
                raise CacheError(f"the cache has {len(cache.k)} layers and {self.name} has {self.layers}")
            cache.check(plan)
        elif plan.rows is not None:
            raise CacheError("Plan.rows names rows of a cache, and this forward has no cache")
        elif plan.uniform is not None and plan.uniform > shape[1]:
            raise CapacityError(
                f"without a cache only {shape[1]} positions are visible, and the plan has uniform={plan.uniform}"
            )
        if self.limit is not None and cache is None and shape[1] > self.limit:
            raise CapacityError(
                f"{self.name} supports up to {self.limit} positions, got {shape[1]}",
                f"keep inputs within {self.limit} positions",
            )

    def _check_parts(self, plan: Plan) -> None:
        if plan.hidden and not all(-1 <= layer < self.layers for layer in plan.hidden):
            raise ModelError(f"hidden names layers {list(plan.hidden)}; {self.name} has 0..{self.layers - 1}")
        if plan.skip and not all(0 <= layer < self.layers and part in ("attn", "mlp") for layer, part in plan.skip):
            raise ModelError(
                f"skip must name (layer, 'attn' or 'mlp') with layers 0..{self.layers - 1}, got {sorted(plan.skip)}"
            )
        if plan.attention and not all(0 <= layer < self.layers for layer in plan.attention):
            raise ModelError(f"attention names layers {list(plan.attention)}; {self.name} has 0..{self.layers - 1}")
        if plan.attention and self.processes > 1:
            raise ModelError(
                f"the attention weights of {self.name} cannot be returned: each process has a part of its heads"
            )
        if plan.parallel != 1 and (plan.parallel < 1 or plan.skip or plan.layers is not None):
            raise ModelError(f"parallel={plan.parallel} must be at least 1, and needs the whole stack")
        if plan.layers is not None:
            chosen = range(self.layers)[plan.layers]
            if not chosen or chosen.step != 1:
                raise ModelError(f"layers must be a contiguous part of 0..{self.layers - 1}, got {plan.layers}")


def _check_visible(plan: Plan) -> None:
    visible, (batch, width) = plan.visible, plan.tokens.shape
    if visible.kind == "tree":
        parents, base = visible.parents, visible.base
        if parents is None or base is None or parents.shape not in ((width,), (batch, width)) or base.shape != (batch,):
            got = [list(entry.shape) if entry is not None else None for entry in (parents, base)]
            raise ModelError(
                f"tree: parents must be [{width}] or [{batch}, {width}] and base [{batch}], got {got[0]} and {got[1]}"
            )
    elif visible.kind == "mask":
        if visible.dense is None or visible.dense.shape[:2] != (batch, width):
            got_mask = list(visible.dense.shape) if visible.dense is not None else None
            raise ModelError(f"mask: expected [{batch}, {width}, C], got {got_mask}")
    elif visible.kind == "segments":
        if visible.block is None and (visible.ids is None or visible.ids.dim() != 2 or visible.ids.shape[0] != batch):
            raise ModelError(f"segments: ids must be [{batch}, C]")
    elif visible.kind not in ("bidirectional", "causal"):
        raise ModelError(f"unknown visibility {visible.kind!r}", "use bidirectional, causal, segments, tree or mask")
