"""From the metadata of a GGUF file to a config.json and the published names of its tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import ModelError, listed
from .architectures import ARCHITECTURES, Architecture
from .header import Header
from .keys import ORIGINAL, check_keys

_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
_ROPE_FACTORS = "rope_freqs.weight"  # Llama 3.1 and later: a divisor of each rotary frequency


@dataclass(frozen=True, slots=True)
class Target:
    """The published name of a tensor, and whether its rows are reordered."""

    name: str  # the published name
    heads: int | None = None  # number of heads whose rows are put back into the published order; None: none


class Fields:
    """Reads a file's metadata by name and type; raises ModelError if a value is missing or has another type."""

    def __init__(self, header: Header) -> None:
        self.file, self.values = header.file, header.metadata
        self.architecture = self.text("general.architecture")

    def _key(self, name: str) -> str:
        return name if name.startswith(("general.", "tokenizer.", "split.")) else f"{self.architecture}.{name}"

    def _fail(self, name: str, wanted: str) -> ModelError:
        value = self.values.get(self._key(name))
        problem = "is missing" if value is None else f"is {str(value)[:80]!r}, and {wanted} is needed"
        return ModelError(f"{self.file}: {self._key(name)} {problem}")

    def text(self, name: str) -> str:
        value = self.values.get(name)
        if not isinstance(value, str):
            raise ModelError(f"{self.file}: {name} is {'missing' if value is None else f'{value!r}, and must be text'}")
        return value

    def whole(self, name: str, default: int | None = None) -> int:
        value = self.values.get(self._key(name), default)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**31:
            raise self._fail(name, "a whole number")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self.values.get(self._key(name), default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1e30:
            raise self._fail(name, "a positive number")
        return float(str(np.float32(value)))  # the shortest number with this float32: 1e-05 for 9.99999975e-06

    def optional(self, name: str) -> Any:
        return self.values.get(self._key(name))


def describe(header: Header) -> tuple[dict[str, Any], dict[str, Target]]:
    """config.json, and the target of every tensor that is to be published.

    Raises:
        ModelError: the architecture is not supported, or tensors are missing, of other shapes or unknown.
    """
    fields = Fields(header)
    name = fields.architecture
    if name not in ARCHITECTURES:
        raise ModelError(
            f"{header.file} holds a model of architecture {name!r}, which cannot be read from GGUF files",
            f"supported: {', '.join(ARCHITECTURES)}; load other models from a folder of safetensors",
        )
    if fields.whole("split.count", 1) > 1:
        raise ModelError(
            f"{header.file} is one of {fields.whole('split.count')} parts of a model",
            "merge the parts into one file first (llama-gguf-split --merge)",
        )
    architecture = ARCHITECTURES[name]
    check_keys(header, name, architecture)
    config = _config(fields, header, architecture)
    targets = _targets(header, config, architecture)
    if architecture.keys and config["rope_parameters"]["rope_type"] != "default":
        raise ModelError(
            f"{header.file}: {name}.rope.scaling.factor: rotary scaling is not supported for {name}", ORIGINAL
        )
    return architecture.published(config), targets


def _config(fields: Fields, header: Header, architecture: Architecture) -> dict[str, Any]:
    """The config with the keys of transformers."""
    tensors = header.tensors
    embedding = tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise ModelError(f"{fields.file} has no tensor token_embd.weight with two axes")
    width, heads = fields.whole("embedding_length"), fields.whole("attention.head_count")
    layers = fields.whole("block_count")
    if not heads or not width or not 0 < layers <= len(tensors):
        raise ModelError(f"{fields.file}: {layers} layers of {heads} heads and width {width} are not possible")
    head_dim = fields.whole("attention.key_length", width // heads)
    rotated = fields.whole("rope.dimension_count", head_dim)
    values = fields.whole("attention.value_length", head_dim)
    if not head_dim == rotated == values:
        problem = f"keys of {head_dim} values, of which {rotated} are rotated, and values of {values}: not supported"
        raise ModelError(f"{fields.file}: {problem}")
    experts = _experts(fields, architecture)
    config: dict[str, Any] = {
        "architectures": [architecture.class_name],
        "model_type": architecture.model_type,
        "vocab_size": embedding.shape[0],
        "hidden_size": width,
        "intermediate_size": fields.whole("feed_forward_length", experts.get(architecture.expert_width)),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": fields.whole("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": fields.number("attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": fields.whole("context_length"),
        "rope_parameters": _rope(fields, header, head_dim, architecture),
        "tie_word_embeddings": "output.weight" not in tensors,
        **experts,
    }
    if architecture.optional_biases:
        config |= {"attention_bias": "blk.0.attn_q.bias" in tensors, "mlp_bias": "blk.0.ffn_gate.bias" in tensors}
    return config


def _experts(fields: Fields, architecture: Architecture) -> dict[str, Any]:
    """The config of the experts of every layer; empty for an architecture that has none."""
    if not architecture.expert_width:
        return {}
    count, used = fields.whole("expert_count"), fields.whole("expert_used_count")
    if not 0 < used <= count:
        raise ModelError(f"{fields.file}: {used} of {count} experts for a token are not possible")
    inner = fields.whole("expert_feed_forward_length", 0) or fields.whole("feed_forward_length") // used
    return {"num_experts": count, "num_experts_per_tok": used, architecture.expert_width: inner}


def _rope(fields: Fields, header: Header, head_dim: int, architecture: Architecture) -> dict[str, Any]:
    """The rotary parameters. A file that names no kind of scaling has the linear one, as llama.cpp reads it."""
    theta = fields.number("rope.freq_base", 10000.0)
    kind = fields.optional("rope.scaling.type")
    if kind not in (None, "none", "linear"):
        raise ModelError(
            f"{fields.file}: {fields.architecture}.rope.scaling.type: rotary scaling of type {str(kind)[:80]!r} is not"
            " supported",
            "supported: none, linear, and the divisors of Llama 3",
        )
    factor = 1.0
    for key in ("rope.scaling.factor", "rope.scale_linear"):
        if kind != "none" and fields.optional(key) is not None:
            factor = fields.number(key) if fields.optional(key) else 1.0  # 0 is off
            break
    if _ROPE_FACTORS in header.tensors:
        if not architecture.scaled_frequencies or factor != 1:
            raise ModelError(
                f"{fields.file}: {_ROPE_FACTORS} is not supported for {fields.architecture} with a factor"
                f" of {factor:g}",
                ORIGINAL,
            )
        return _llama3(header, theta, head_dim)
    if factor != 1:
        return {"rope_type": "linear", "factor": factor, "rope_theta": theta}
    return {"rope_type": "default", "rope_theta": theta}


def _llama3(header: Header, theta: float, head_dim: int) -> dict[str, Any]:
    """Llama 3's scaling. The file has only the divisors, which must match Llama's own settings."""
    tensor = header.tensors[_ROPE_FACTORS]
    if tensor.kind == "F32" and tensor.shape == (head_dim // 2,):
        divisors = header.raw(tensor).reshape(-1).view("<f4").astype(np.float64)
        factor = float(divisors.max())
        rotations = 8192 / (2 * np.pi) * theta ** (-np.arange(0, head_dim, 2) / head_dim)  # within the original length
        unscaled = np.clip((rotations - 1) / 3, 0, 1)
        if np.isfinite(factor) and np.allclose(divisors, 1 / ((1 - unscaled) / factor + unscaled), rtol=1e-3):
            return {"rope_type": "llama3", "factor": factor, "rope_theta": theta, **_LLAMA3}
    raise ModelError(
        f"{header.file}: the divisors in {_ROPE_FACTORS} are not those of Llama 3, and are not supported", ORIGINAL
    )


def _targets(header: Header, config: dict[str, Any], architecture: Architecture) -> dict[str, Target]:
    """The target of each tensor; every name and shape is checked."""
    width, mlp, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    shapes: dict[str, tuple[int, ...]] = {
        "attn_norm": (width,),
        "ffn_norm": (width,),
        "attn_q": (queries, width),
        "attn_k": (keys, width),
        "attn_v": (keys, width),
        "attn_output": (width, queries),
    }
    if architecture.expert_width:
        count, inner = config["num_experts"], config[architecture.expert_width]
        shapes |= {"ffn_gate_inp": (count, width), "ffn_down_exps": (count, width, inner)}
        shapes |= dict.fromkeys(("ffn_gate_exps", "ffn_up_exps"), (count, inner, width))
    else:
        shapes |= {"ffn_gate": (mlp, width), "ffn_up": (mlp, width), "ffn_down": (width, mlp)}
    if architecture.query_norms:
        shapes |= {"attn_q_norm": (head,), "attn_k_norm": (head,)}
    biased = ["attn_q", "attn_k", "attn_v"] if architecture.qkv_bias else []
    if config.get("attention_bias"):
        biased += ["attn_q", "attn_k", "attn_v", "attn_output"]
    if config.get("mlp_bias"):
        biased += ["ffn_gate", "ffn_up", "ffn_down"]
    outer = {"token_embd": (config["vocab_size"], width), "output_norm": (width,)}
    if not config["tie_word_embeddings"]:
        outer["output"] = (config["vocab_size"], width)
    wanted = {f"{part}.weight": (Target(f"{architecture.outer[part]}.weight"), shape) for part, shape in outer.items()}
    permuted = {}
    if architecture.interleaved:
        permuted = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    for layer in range(config["num_hidden_layers"]):
        for part, shape in shapes.items():
            for ending in ("weight", "bias")[: 1 + (part in biased)]:
                published = architecture.layer.format(i=layer) + architecture.parts[part]
                stacked = part.endswith("_exps")  # published as a parameter of its own, not as the weight of a layer
                target = Target(published if stacked else f"{published}.{ending}", permuted.get(part))
                wanted[f"blk.{layer}.{part}.{ending}"] = (target, shape if ending == "weight" else shape[:1])
    missing, unknown = wanted.keys() - header.tensors.keys(), header.tensors.keys() - wanted.keys() - {_ROPE_FACTORS}
    if missing:
        raise ModelError(f"{header.file} lacks {len(missing)} tensors: {listed(sorted(missing))}")
    if unknown:
        raise ModelError(f"{header.file} holds unknown tensors: {listed(sorted(unknown))}")
    for name, (_, shape) in wanted.items():
        if header.tensors[name].shape != shape:
            raise ModelError(f"{header.file}: tensor {name} has shape {header.tensors[name].shape}, not {shape}")
    return {name: target for name, (target, _) in wanted.items()}
