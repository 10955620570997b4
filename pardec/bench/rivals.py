"""Other projects' loops on the same weights: a plain one, transformers' generate, diffusers' LLaDA2Pipeline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from pardec.models.decoder import Decoder
from pardec.models.errors import ModelError
from pardec.models.families import FAMILIES
from pardec.models.kernels import layout
from pardec.models.kernels.ops import apply_rotary
from pardec.models.layers.layer import DecoderLayer
from pardec.models.loading import assemble
from pardec.models.model import LanguageModel
from pardec.models.plan import Plan
from pardec.samplers import registry

from ..requests.call import Call

GENERATED = ("llama", "qwen2", "qwen3")  # families whose published class transformers' generate decodes
_NEVER = 2.0  # a threshold that no probability passes


@dataclass(slots=True)
class Rivals:
    """Other loops that can decode a request, each as a function that returns tokens [B, new]; and why others cannot."""

    runs: dict[str, Callable[[], Tensor]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)


def rivals(model: LanguageModel, call: Call) -> Rivals:
    """The loops that must give the same tokens as `call`."""
    others = Rivals()
    if not isinstance(model.decoder, Decoder) or call.request.temperature:
        return others
    if model.family in GENERATED:
        if call.sampler.exact == "relaxed":
            others.left_out["transformers"] = f"{call.sampler.spec} may give other tokens"
        else:
            others.runs["transformers"] = _generate(model, call)
    elif call.request.stop_ids or len(set(call.prompts)) > 1:
        others.left_out["plain"] = others.left_out["diffusers"] = "it takes rows of one length that do not end early"
    elif model.decoding_config.attention == "bidirectional":
        caches = {str(registry.resolve(f"sequential@{cache}", "masked").spec): cache for cache in ("none", "dual")}
        cache = caches.get(str(call.sampler.spec))
        prompt, length, block = call.prompts[0], call.lengths[0], call.request.block_length
        canvas = torch.stack(call.request.canvases).to(model.device)
        if cache is None:
            others.left_out["plain"] = f"it decodes sequential@none and sequential@dual, and not {call.sampler.spec}"
            return others
        plain = Plain(model, length, cached=cache == "dual")
        others.runs["plain"] = lambda: plain.run(canvas, prompt, block)[:, prompt:]
        if cache == "dual":
            others.left_out["diffusers"] = "its pipeline has no cache"
        elif find_spec("diffusers") is None:
            others.left_out["diffusers"] = "it is not installed"
        elif prompt % block or (length - prompt) % block:
            reason = f"its blocks of {block} begin at position 0: --context and --new must be multiples of {block}"
            others.left_out["diffusers"] = reason
        else:
            others.runs["diffusers"] = _pipeline(model, canvas, prompt, block)
    return others


def published(model: LanguageModel) -> nn.Module:
    """transformers' class of the same config, sharing the memory of weights that are stored row by row."""
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    settings = {name: value for name, value in model.config.items() if name not in ("model_type", "torch_dtype")}
    config = CONFIG_MAPPING[model.config["model_type"]].from_dict(settings)
    with model.device:  # where random weights of 8B are made in a second; a CPU takes minutes
        network: nn.Module = AutoModelForCausalLM.from_config(config, dtype=model.dtype).eval()
    assert isinstance(model.decoder, Decoder), "of a native family"
    state = {}
    for name, target in assemble.targets(FAMILIES[model.family], model.decoder).items():
        weight = model.decoder.get_parameter(target.parameter).detach()
        state[name] = weight[target.start : target.start + target.shape[0]].contiguous()
    if model.decoder.config.tied:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    network.load_state_dict(state, strict=True, assign=True)
    return network


def _generate(model: LanguageModel, call: Call) -> Callable[[], Tensor]:
    """Greedy decoding, of prompts padded on the left to one length."""
    network: Any = published(model)
    network.generation_config.eos_token_id = list(call.request.stop_ids) or None
    network.generation_config.pad_token_id = model.decoding_config.pad_id
    longest, new = max(call.prompts), call.lengths[0] - call.prompts[0]
    ids = torch.full((len(call.prompts), longest), model.decoding_config.pad_id)
    mask = torch.zeros_like(ids)
    for row, (canvas, length) in enumerate(zip(call.request.canvases, call.prompts, strict=True)):
        ids[row, longest - length :], mask[row, longest - length :] = canvas[:length], 1
    ids, mask = ids.to(model.device), mask.to(model.device)

    @torch.inference_mode()
    def run() -> Tensor:
        sequences: Tensor = network.generate(ids, attention_mask=mask, max_new_tokens=new, do_sample=False)
        return sequences[:, longest:]

    return run


class Shim(nn.Module):
    """A pardec model with the interface that LLaDA2Pipeline calls; all later blocks are masked."""

    def __init__(self, model: LanguageModel, length: int, block: int) -> None:
        super().__init__()
        self.model, self.length, self.block = model, length, block
        self.dtype, self.device = model.dtype, model.device

    def forward(self, input_ids: Tensor, **_: Any) -> Any:
        """Logits [B, block, V] of the last block of `input_ids` [B, n], which is all that the pipeline reads."""
        mask, stop = self.model.decoding_config.mask_id, input_ids.shape[1]
        assert mask is not None, "a masked model"
        canvas = nn.functional.pad(input_ids, (0, self.length - stop), value=mask)
        plan = Plan.full(canvas, self.model.visible())
        positions = torch.arange(stop - self.block, stop, device=canvas.device).expand(len(canvas), -1)
        logits = self.model.forward(plan).logits(self.model.rows(positions)).clone()
        logits[..., mask] = -1e9  # its scheduler would commit the mask token where that is the likeliest
        return SimpleNamespace(logits=logits)


def _pipeline(model: LanguageModel, canvas: Tensor, prompt: int, block: int) -> Callable[[], Tensor]:
    from diffusers import BlockRefinementScheduler, LLaDA2Pipeline

    length = canvas.shape[1]
    pipeline = LLaDA2Pipeline(model=Shim(model, length, block), scheduler=BlockRefinementScheduler())
    pipeline.set_progress_bar_config(disable=True)
    options: dict[str, Any] = {"block_length": block, "num_inference_steps": block, "threshold": _NEVER}
    options |= {"editing_threshold": None, "minimal_topk": 1, "eos_early_stop": False, "output_type": "seq"}
    options["mask_token_id"] = model.decoding_config.mask_id

    @torch.inference_mode()
    def run() -> Tensor:
        sequences: Tensor = pipeline(input_ids=canvas[:, :prompt], gen_length=length - prompt, **options).sequences
        return sequences

    return run


Cache = list[tuple[Tensor, Tensor]]  # keys and values of each layer, [B, S, K, D]


class Plain:
    """`sequential` decoding as in Fast-dLLM, for a shifted or unshifted model; rows of equal length.

    It is written in the way of the papers' own code: logits at every position it feeds, keys and values concatenated
    from cached and fresh ones, a Python loop over the rows to choose what is committed, all rows in lock step. It has
    the same weights, fused matmuls and library attention, so that only the loop differs, and it must give the same
    tokens.
    """

    def __init__(self, model: LanguageModel, length: int, *, cached: bool) -> None:
        """Rows of up to `length` tokens; `cached` stores K and V outside of the active block, as `dual` does.

        Raises ModelError for other stacks.
        """
        decoder = model.decoder
        bidirectional = model.decoding_config.attention == "bidirectional"
        if not isinstance(decoder, Decoder) or not bidirectional or decoder.config.grid:
            raise ModelError(f"{model.name} is not a bidirectional text model on the native stack")
        assert model.decoding_config.mask_id is not None, "of a masked model"
        self.decoder, self.cached = decoder, cached
        self.mask, self.shift = model.decoding_config.mask_id, model.decoding_config.shift
        angles = torch.arange(length)[:, None] * torch.tensor(decoder.config.frequencies)
        cos, sin = torch.cat([angles.cos(), angles.cos()], -1), torch.cat([-angles.sin(), angles.sin()], -1)
        self.cos, self.sin = (table[None, :, None].to(model.device) for table in (cos, sin))
        self._dense = {id(weight): layout.dense(weight) for weight in decoder.parameters()}

    def _dense_weight(self, weight: Tensor) -> Tensor:
        return self._dense[id(weight)]

    @torch.inference_mode()
    def run(self, tokens: Tensor, prompt: int, block: int) -> Tensor:
        """`tokens` [B, L] with every mask after the `prompt` tokens filled."""
        tokens, mask, shift = tokens.clone(), self.mask, self.shift
        for lo in range(prompt, tokens.shape[1], block):
            hi = min(lo + block, tokens.shape[1])
            cache: Cache | None = None
            while (tokens[:, lo:hi] == mask).any():
                start = 0 if cache is None else lo - shift
                stop = tokens.shape[1] if cache is None else hi
                logits, fresh = self.forward(tokens[:, start:stop], start, cache)
                cache = (cache or fresh) if self.cached else None
                if shift:
                    logits = torch.cat([logits[:, :1], logits[:, :-1]], dim=1) if start == 0 else logits[:, :-1]
                first = lo if start == 0 else 0
                self.commit(tokens[:, lo:hi], logits[:, first : first + hi - lo])
        return tokens

    def commit(self, block: Tensor, logits: Tensor) -> None:
        """Commits the most confident masked position of each row of `block` [B, W], from `logits` [B, W, V]."""
        masked = block == self.mask
        logits[..., self.mask] = -torch.inf
        candidates = logits.argmax(-1)
        confidence = F.softmax(logits.float(), dim=-1).gather(-1, candidates[..., None])[..., 0]
        candidates = torch.where(masked, candidates, block)
        confidence = torch.where(masked, confidence, -torch.inf)
        commits = torch.zeros_like(masked)
        for row in range(len(block)):
            _, index = torch.topk(confidence[row], k=1)
            commits[row, index] = True
        block[commits] = candidates[commits]

    def forward(self, tokens: Tensor, start: int, cache: Cache | None) -> tuple[Tensor, Cache]:
        """Logits [B, Q, V] of all `tokens` [B, Q], whose positions begin at `start`, and the K/V of each layer."""
        h, fresh = self.decoder.embed(tokens), []
        for index, layer in enumerate(self.decoder.layers):
            assert isinstance(layer, DecoderLayer)
            h, kv = self._layer(h, layer, start, None if cache is None else cache[index])
            fresh.append(kv)
        return F.linear(self.decoder.norm(h), self._dense_weight(self.decoder.head.weight)), fresh

    def _layer(self, h: Tensor, layer: DecoderLayer, start: int, cache: Any) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        config, stop = self.decoder.config, start + h.shape[1]
        normed = F.rms_norm(h, (config.width,), layer.attn_norm, config.norm_eps)
        fused = F.linear(normed, self._dense_weight(layer.qkv_weight), layer.qkv_bias)
        heads = rearrange(fused, "b q (h d) -> b q h d", d=config.head_dim)
        rotated = apply_rotary(
            heads[:, :, : config.heads + config.kv_heads], self.cos[:, start:stop], self.sin[:, start:stop]
        )
        q, k = rotated[:, :, : config.heads], rotated[:, :, config.heads :]
        v = heads[:, :, config.heads + config.kv_heads :]
        fresh = (k, v)
        if cache is not None:
            pairs = zip(cache, fresh, strict=True)
            k, v = (torch.cat([old[:, :start], new, old[:, stop:]], dim=1) for old, new in pairs)
        out = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), enable_gqa=config.heads != config.kv_heads
        )
        h = h + F.linear(rearrange(out, "b h q d -> b q (h d)"), self._dense_weight(layer.out_weight), layer.out_bias)
        normed = F.rms_norm(h, (config.width,), layer.mlp_norm, config.norm_eps)
        gate, up = F.linear(normed, self._dense_weight(layer.gate_up_weight), layer.gate_up_bias).chunk(2, dim=-1)
        return h + F.linear(F.silu(gate) * up, self._dense_weight(layer.down_weight), layer.down_bias), fresh
