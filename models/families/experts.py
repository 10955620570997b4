"""Names and layouts of files with experts, and the config keys that most of them share."""

from __future__ import annotations

from typing import Any

from ..decoder_config import ExpertsConfig
from ..errors import ModelError
from .base import Config, Names
from .llama_like import NAMES, complete

_MLP = "model.layers.{i}.mlp."
GATE_UP, DOWN = "layers.{i}.experts_gate_up_weight", "layers.{i}.experts_down_weight"
EXPERT_NAMES: Names = {
    **NAMES,
    "layers.{i}.router_weight": _MLP + "gate.weight",
    GATE_UP: (_MLP + "experts.{e}.gate_proj.weight", _MLP + "experts.{e}.up_proj.weight"),
    DOWN: _MLP + "experts.{e}.down_proj.weight",
}
LAYOUTS: tuple[Names, ...] = (
    {GATE_UP: _MLP + "w1", DOWN: _MLP + "w2"},  # dInfer
    {GATE_UP: (_MLP + "experts.gate_proj", _MLP + "experts.up_proj"), DOWN: _MLP + "experts.down_proj"},  # dFactory
    {GATE_UP: _MLP + "experts.gate_up_proj", DOWN: _MLP + "experts.down_proj"},  # transformers
)


def whole(config: Config, key: str, default: int | None = None) -> int:
    """The whole number at `key`. Raises ModelError where there is none."""
    value = config.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ModelError(f"config.json: {key} must be a whole number, got {value!r}")
    return value


def softmax_experts(config: Config, kind: str) -> ExpertsConfig:
    """The experts of a config with the keys of Qwen3-MoE, as the transformers class `kind` completes it."""
    full = complete(config, kind)
    step, dense, count = full.decoder_sparse_step, full.mlp_only_layers or [], full.num_experts
    return ExpertsConfig(
        count=count,
        top=full.num_experts_per_tok,
        width=full.moe_intermediate_size,
        sparse=tuple(i not in dense and count > 0 and (i + 1) % step == 0 for i in range(full.num_hidden_layers)),
        normalize=bool(full.norm_topk_prob),
    )


def as_flags(values: Any, layers: int, key: str) -> tuple[bool, ...]:
    """A flag for each layer, from a list of them or one for all. Raises ModelError for a list of another length."""
    flags = values if isinstance(values, list) else [values] * layers
    if len(flags) != layers:
        raise ModelError(f"config.json: {key} has {len(flags)} entries, and the model has {layers} layers")
    return tuple(bool(flag) for flag in flags)
