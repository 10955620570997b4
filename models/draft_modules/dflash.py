"""DFlash, DFlash 2 and DSpark: one pass denoises a block of masks that attends to the target's states.

DFlash: Block Diffusion for Flash Speculative Decoding, https://arxiv.org/abs/2602.06036
DSpark, https://arxiv.org/abs/2607.05147
DFlash 2, https://github.com/z-lab/dflash (`DFlash2DraftModel`)

    c_i = norm(fc [f_a; f_b; ..]_i)      of the target's states at verified positions i
    layer:  q of the block, [last token, mask, mask, ..];  k, v of c_i and of the block;  k by rotation at its position
    logits of the token j places after the last one = head(norm(h_j))

K/V of the context are made once and stay in a cache; those of the block lie after it until the context is that long.
The queries of a block see each other, both ways. DSpark's first query drafts, too, a Markov head adds what the token
before does (see `dflash_heads`), and a^_j = sigmoid(w [h_j; W1 token] + b) estimates whether a token is accepted.
DFlash 2 convolves what enters and leaves attention and MLP along the block (see `dflash_conv`), and a selector scores
pairs of tokens.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from ..caches.kv_cache import KVCache
from ..decoder_config import DecoderConfig
from ..errors import listed
from ..kernels.attention import attend, attention_pattern
from ..kernels.matmul import matmul
from ..kernels.ops import choose_ops
from ..layers.empty_weights import empty_weights
from ..layers.layer import DecoderLayer, LayerPass
from ..layers.rope import Rope
from ..model import LanguageModel
from ..plan import Plan, TargetStates, Visible
from .contracts import DraftFiles, DraftKind, DraftModule, register
from .dflash_files import DFlashLayout, check_target, is_dflash, read_layout
from .dflash_heads import Selector, Transition
from .parameters import fill, is_copy, left_out, parameter, target_rows
from .vocabulary import find_vocabulary

_OWN = {
    "embedding": "embed_tokens.weight",
    "head": "lm_head.weight",
    "table": "markov_head.markov_w1.weight",
    "output": "markov_head.markov_w2.weight",
}
_NARROW = 0.8  # above this share of wanted queries, the last layer computes all of them
_HARMLESS = (r".*rotary_emb\.inv_freq", "d2t", "t2d")


class BlockLayer(DecoderLayer):
    """A layer that also has keys and values of the context, made by a separate matrix."""

    q_bias: nn.Parameter | None
    kv_bias: nn.Parameter | None

    def __init__(self, config: DecoderConfig, taps: int = 0, group: int = 1) -> None:
        """`taps` of the convolutions around attention and MLP, by `group` channels; 0: there are none."""
        super().__init__(config)
        self.attn_conv = BlockConvolution(config.width, taps, group) if taps else None
        self.mlp_conv = BlockConvolution(config.width, taps, group) if taps else None
        del self.qkv_weight, self.qkv_bias
        queries, both = config.heads * config.head_dim, 2 * config.kv_heads * config.head_dim
        self.q_weight = nn.Parameter(torch.empty(queries, config.width))
        self.kv_weight = nn.Parameter(torch.empty(both, config.width))
        self.register_parameter("q_bias", nn.Parameter(torch.empty(queries)) if config.qkv_bias else None)
        self.register_parameter("kv_bias", nn.Parameter(torch.empty(both)) if config.qkv_bias else None)

    def cache(self, context: Tensor, step: LayerPass, index: int) -> None:
        """Writes keys and values of `context` [B * N, E] to the slots of `step.plan`."""
        config, ops, slots = self.config, step.ops, step.slots
        assert slots is not None
        kv = matmul(context, self.kv_weight, self.kv_bias).view(*step.plan.tokens.shape, -1, config.head_dim)
        if self.k_norm is not None:
            k, v = torch.split(kv, config.kv_heads, 2)
            kv = torch.cat((ops.norm(k, self.k_norm, config.norm_eps), v), 2)
        ops.rotary_and_cache(kv, step.cos, step.sin, 0, slots, index)

    def _attention(
        self, h: Tensor, step: LayerPass, index: int, picked: Tensor | None, inputs: Tensor | None = None
    ) -> Tensor:
        config, ops, shape = self.config, step.ops, step.plan.tokens.shape
        inputs = self.inputs(h, ops) if inputs is None else inputs
        kernel = None
        if self.attn_conv is not None:
            blocks = inputs.view(*shape, -1)
            before, kernel = self.attn_conv.kernels(blocks)
            inputs = self.attn_conv(blocks, before, 0).flatten(0, 1)
        parts = matmul(inputs, self.q_weight, self.q_bias), matmul(inputs, self.kv_weight, self.kv_bias)
        qkv = torch.cat(parts, -1).view(*shape, -1, config.head_dim)
        qkv = self._normed_heads(qkv, ops) if self.norms_heads else qkv
        q, k, v = ops.rotary_and_cache(qkv, step.cos, step.sin, config.heads, step.slots, index)
        pattern = step.pattern
        if picked is not None:
            rows = torch.arange(len(picked), device=h.device)[:, None]
            h = h.view(*shape, -1)[rows, picked].flatten(0, 1)
            q, pattern = q[rows, picked], pattern.narrowed(picked)
            kernel = None if kernel is None else kernel[rows, picked]
        out = matmul(attend(q, k, v, pattern).reshape(len(h), -1), self.out_weight, self.out_bias)
        if self.attn_conv is not None and kernel is not None:
            out = self.attn_conv(out.view(shape[0], -1, out.shape[-1]), kernel, 1).flatten(0, 1)
        return h + out

    def _mlp(self, h: Tensor, step: LayerPass) -> Tensor:
        if self.mlp_conv is None:
            return super()._mlp(h, step)
        config, ops = self.config, step.ops
        blocks = ops.norm(h, self.mlp_norm, config.norm_eps).view(step.plan.batch, -1, config.width)
        before, after = self.mlp_conv.kernels(blocks)
        inputs = self.mlp_conv(blocks, before, 0).flatten(0, 1)
        inner = ops.glu(matmul(inputs, self.gate_up_weight, self.gate_up_bias), config.activation)
        out = matmul(inner, self.down_weight, self.down_bias).view_as(blocks)
        added: Tensor = self.mlp_conv(out, after, 1)
        return h + added.flatten(0, 1)


class DFlashModule(DraftModule):
    """A drafter of blocks, bound to its target."""

    kind: ClassVar[str] = "dflash"

    def __init__(self, files: DraftFiles, target: LanguageModel, layout: DFlashLayout) -> None:
        super().__init__(files, target)
        config, published = layout.config, files.published
        self.layout, self.block_size, self.depth = layout, layout.block, layout.depth
        self.states = TargetStates(layout.taps)
        self.fc_weight = parameter(config.width, len(layout.taps) * target.width)
        self.hidden_norm, self.norm = parameter(config.width), parameter(config.width)
        self.layers = nn.ModuleList(
            BlockLayer(config.of(index), layout.conv_taps, layout.conv_group) for index in range(config.layers)
        )
        own = {name: published[key].shape[0] for name, key in _OWN.items() if key in published}
        self.embedding = parameter(own["embedding"], config.width) if "embedding" in own else None
        self.head = parameter(own["head"], config.width) if "head" in own else None
        self.head_rows: tuple[Tensor, ...] = ()  # [Vd, E] rows of the target's head, where it drafts some ids with it
        self.transition: Transition | Selector | None = None
        if layout.selected:
            self.transition = Selector(ids=config.vocab, rank=layout.rank, width=config.width, count=layout.selected)
        elif layout.transition:
            self.transition = Transition(
                layout.transition, ids=own["table"], drafted=own["output"], rank=layout.rank, width=config.width
            )
        self.confidence = self.confidence_bias = None
        if "confidence_head.proj.weight" in published:
            self.confidence = parameter(*published["confidence_head.proj.weight"].shape)
            self.confidence_bias = parameter(1)
        self.estimates_acceptance = self.confidence is not None
        self.ropes = [Rope.of(config.of(index)) for index in range(config.layers)]

    @property
    def parameters_read(self) -> int:
        looked_up = [self.embedding, *(() if self.transition is None else self.transition.looked_up)]
        shared = 0
        if self.head is None:
            shared = self.head_rows[0].numel() if self.head_rows else self.vocab_size * self.target.width
        return self.parameter_count - sum(each.numel() for each in looked_up if each is not None) + shared

    @property
    def with_cache(self) -> Any:
        return self

    def new_cache(self, batch: int, capacity: int, *, scratch: int = 0) -> KVCache:
        """An empty cache for `capacity` positions of context and one block after them."""
        return self.cache_of(self.layout.config, batch, capacity + self.block_size)

    def fuse(self, states: Tensor) -> Tensor:
        """[..., E] the context made of the target's `states` [..., S]."""
        states = states.to(device=self.device, dtype=self.dtype)
        fused = matmul(states, self.fc_weight)
        return choose_ops(self.device, self.dtype).norm(fused, self.hidden_norm, self.layout.config.norm_eps)

    def remember(self, context: Tensor, plan: Plan, cache: KVCache) -> None:
        """Writes K/V of fused states [B, N, E] at the positions and slots of `plan`."""
        step, flat = self._pass(plan, cache, 0), context.flatten(0, 1)
        for index, layer in enumerate(self.layers):
            layer.cache(flat, self._own(step, plan, cache, index), index)  # type: ignore[operator]

    def run(self, plan: Plan, cache: KVCache, count: int) -> Tensor:
        """Runs a plan of blocks: [B, count, E] the normed states that draft the first `count` tokens."""
        layout = self.layout
        first = 0 if layout.from_anchor else 1
        least = 0 if layout.conv_taps else first  # convolutions read the queries before
        h = self.embed_block(plan.tokens).flatten(0, 1)
        picked = None
        if count <= _NARROW * plan.width:
            picked = torch.arange(least, first + count, device=h.device).expand(plan.batch, -1)
        step, last = self._pass(plan, cache, 0), len(self.layers) - 1
        for index, layer in enumerate(self.layers):
            own = self._own(step, plan, cache, index)
            h = layer.forward(h, own, index, picked if index == last else None)
        skipped = first if picked is None else first - least
        h = h.view(plan.batch, -1, h.shape[-1])[:, skipped : skipped + count].contiguous()
        return choose_ops(self.device, self.dtype).norm(h, self.norm, layout.config.norm_eps)

    def embed_block(self, tokens: Tensor) -> Tensor:
        """[..., E] the embeddings that enter the layers: as stored, without the target's scale."""
        table = self.target.decoder.embedding if self.embedding is None else self.embedding
        rows = nn.functional.embedding(tokens.clamp(0, len(table) - 1), table).to(device=self.device, dtype=self.dtype)
        return rows if self.layout.scale == 1 else rows * self.layout.scale

    def logits(self, states: Tensor) -> Tensor:
        """Logits [..., Vd] of normed states [..., E], before a Markov head adds to them."""
        if self.head is None and not self.head_rows:
            logits: Tensor = self.target.decoder.head.forward(states)  # type: ignore[attr-defined]
        else:
            weight = self.head if self.head is not None else self.head_rows[0]
            logits = matmul(states, weight)
        layout = self.layout
        logits = logits if layout.multiplier == 1 else logits * layout.multiplier
        return logits if layout.cap is None else (logits / layout.cap).tanh() * layout.cap

    def estimate(self, states: Tensor, embedded: Tensor | None) -> Tensor | None:
        """[...] the probability that a token drawn there is accepted; None without a confidence head."""
        if self.confidence is None:
            return None
        alone = self.confidence.shape[1] == states.shape[-1]
        features = states if alone or embedded is None else torch.cat((states, embedded), -1)
        return matmul(features, self.confidence, self.confidence_bias)[..., 0].float().sigmoid()

    def _pass(self, plan: Plan, cache: KVCache, index: int) -> LayerPass:
        """The `LayerPass` of layer `index`, and of layers with the same mask and rotation."""
        window, causal = self.layout.config.of(index).window, self.layout.causal[index]
        cos, sin = self.ropes[index].rows(plan, limit=cache.capacity, device=self.device)
        pattern_plan = replace(plan, visible=Visible.causal() if causal else Visible.bidirectional())
        pattern = attention_pattern(
            pattern_plan, extent=cache.extent(plan), dtype=self.dtype, device=self.device, window=window
        )
        return LayerPass(plan, choose_ops(self.device, self.dtype), pattern, cache.slots(plan), cos, sin)

    def _own(self, step: LayerPass, plan: Plan, cache: KVCache, index: int) -> LayerPass:
        layout = self.layout
        alike = not layout.config.each and layout.causal[index] == layout.causal[0]
        return step if alike else self._pass(plan, cache, index)


def load(files: DraftFiles, target: LanguageModel, *, taps: str | None = None) -> DFlashModule:
    """Reads a DFlash, DFlash 2 or DSpark for `target`; `taps` "1-9-17" names the layers whose outputs it reads.

    Raises ModelError for what does not fit the target, and for tensors that are missing or unknown.
    """
    layout = read_layout(files, target.layers, taps)
    check_target(files, target, layout)
    vocabulary = find_vocabulary(files, target, layout.vocabulary, of=target.vocab_size)
    with empty_weights():
        module = DFlashModule(files, target, layout)
    module.vocabulary = vocabulary
    fill(
        module,
        files,
        layout.names,
        fused_rows=layout.fused_rows,
        harmless=_HARMLESS,
        by_rows=("embedding", "transition.table", *(("transition.output",) if layout.selected else ())),
    )
    lines = [
        f"{layout.style}: {layout.config.layers} layer(s) of width {layout.config.width}, blocks of {layout.block}"
    ]
    lines.append(f"reads the outputs of layers {listed(map(str, layout.taps))}: {layout.reason}")
    if is_copy(module.embedding, target.decoder.embedding):
        module.embedding = None
        lines.append("embed_tokens is the target's: shared")
    if module.head is not None and hasattr(target.decoder, "head") and is_copy(module.head, target.decoder.head.weight):
        module.head = None
        lines.append("lm_head is the target's: shared")
    if module.head is None and vocabulary is not None:
        module.head_rows = (target_rows(files, target, vocabulary),)
        lines.append("the head is the target's, its rows for the draft ids")
    lines.append(f"drafts {target.vocab_size if vocabulary is None else len(vocabulary)} of {target.vocab_size} ids")
    module.about = (*lines, *left_out(files, layout.config))
    return module.eval()


KIND = register(
    DraftKind(
        "dflash",
        "DFlash, DFlash 2 and DSpark: a block of masks after the target's states, denoised in one pass",
        is_dflash,
        load,
        {
            "DFlash, z-lab": "naive module in the tests",
            "DFlash 2, z-lab": "naive module in the tests",
            "DFlash, a reduced vocabulary (d2t)": "naive module in the tests",
            "DSpark, DeepSpec": "naive module in the tests",
        },
    )
)


class BlockConvolution(nn.Module):
    """DFlash 2's two causal convolutions around one layer, over the positions of each block.

        out[i, c] = sum over taps t of (base[t, c] + d[i, t, g(c)]) x[i - t, c];   d = P x, g(c) the group of channel c

    x is 0 before the block. One projection of a layer's input gives the kernels of its input and of its output.
    """

    def __init__(self, width: int, taps: int, group: int) -> None:
        super().__init__()
        self.taps, self.group = taps, group
        self.base = nn.Parameter(torch.empty(2, taps, width))
        self.projection = nn.Parameter(torch.empty(2 * taps * (width // group), width))

    def kernels(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """The kernels of input and output, both [B, Q, T, G], computed from a layer's `inputs` [B, Q, E]."""
        both = matmul(inputs.flatten(0, 1), self.projection).view(*inputs.shape[:2], 2, self.taps, -1)
        before, after = both.unbind(2)
        return before, after

    def forward(self, x: Tensor, kernel: Tensor, side: int) -> Tensor:
        """x [B, Q, E] convolved with `kernel` [B, Q, T, G], `side` 0 being the input and 1 the output."""
        width = x.shape[1]
        groups = (*kernel.shape, self.group)  # [B, Q, T, G, C]
        weight = self.base[side].to(x.dtype).view(groups[2:]) + kernel[..., None]
        shifted = torch.stack([pad(x, (0, 0, tap, 0))[:, :width] for tap in range(self.taps)], 2)
        return (weight * shifted.view(groups)).sum(2).flatten(-2)
