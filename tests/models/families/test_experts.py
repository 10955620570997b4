"""Experts: routers compared with their formulas, every layout of files; reading, quantizing, sharing and refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from pardec.models.decoder_config import ExpertsConfig
from pardec.models.errors import ModelError
from pardec.models.families import match
from pardec.models.kernels import experts as kernels
from pardec.models.kernels.cpu import blocks
from pardec.models.kernels.experts import mix, route
from pardec.models.kernels.ops import glu
from pardec.models.load import load
from pardec.models.plan import Plan
from tests.models.toys import family_folder

SHAPE = {
    "vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 64, "eos_token_id": 2, "mask_token_id": 60, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
    "hidden_act": "silu", "num_experts": 8, "num_experts_per_tok": 3, "tie_word_embeddings": False,
}  # fmt: skip
LLADA2 = SHAPE | {
    "model_type": "llada2_moe", "architectures": ["LLaDA2MoeModelLM"], "head_dim": 12, "intermediate_size": 40,
    "moe_intermediate_size": 16, "first_k_dense_replace": 1, "n_group": 4, "topk_group": 2, "num_shared_experts": 2,
    "routed_scaling_factor": 2.5, "partial_rotary_factor": 0.5, "score_function": "sigmoid",
}  # fmt: skip
LLADA_MOE = SHAPE | {
    "model_type": "llada", "architectures": ["LLaDAMoEModelLM"], "dense_intermediate_size": 40, "clip_qkv": 0.9,
    "expert_intermediate_size": 16, "moe_layer_freq": [0, 1, 1], "shared_expert_intermediate_size": 24,
    "moe_router_enable_expert_bias": True, "qk_layernorm": True,
}  # fmt: skip
SDAR_MOE = SHAPE | {
    "model_type": "sdar_moe", "architectures": ["SDARMoeForCausalLM"], "head_dim": 12, "intermediate_size": 40,
    "moe_intermediate_size": 16, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [1],
}  # fmt: skip
KINDS = {"llada2": LLADA2, "llada_moe": LLADA_MOE, "sdar_moe": SDAR_MOE}


def logits(folder: Path, **more: Any) -> Tensor:
    model = load(folder, device="cpu", **more)
    tokens = torch.randint(3, 59, (2, 20), generator=torch.Generator().manual_seed(1))
    return model.forward(Plan.full(tokens, model.visible())).logits()


def stacked(tensors: dict[str, Tensor], part: str, layer: int) -> Tensor:
    stem = f"model.layers.{layer}.mlp.experts"
    return torch.stack([tensors.pop(f"{stem}.{e}.{part}_proj.weight") for e in range(8)])


def as_dinfer(tensors: dict[str, Tensor], layer: int) -> None:
    gate, up, down = (stacked(tensors, part, layer) for part in ("gate", "up", "down"))
    tensors[f"model.layers.{layer}.mlp.w1"] = torch.cat([gate, up], 1)
    tensors[f"model.layers.{layer}.mlp.w2"] = down


def as_dfactory(tensors: dict[str, Tensor], layer: int) -> None:
    for part in ("gate", "up", "down"):
        tensors[f"model.layers.{layer}.mlp.experts.{part}_proj"] = stacked(tensors, part, layer)


def as_transformers(tensors: dict[str, Tensor], layer: int) -> None:
    gate, up, down = (stacked(tensors, part, layer) for part in ("gate", "up", "down"))
    tensors[f"model.layers.{layer}.mlp.experts.gate_up_proj"] = torch.cat([gate, up], 1)
    tensors[f"model.layers.{layer}.mlp.experts.down_proj"] = down


@pytest.mark.parametrize("layout", [as_dinfer, as_dfactory, as_transformers])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.covers(1)
def test_every_layout_of_files_is_the_same_model(
    kind: str, layout: Callable[[dict[str, Tensor], int], None], tmp_path: Path
) -> None:
    tensors = family_folder(tmp_path, KINDS[kind])
    alone = logits(tmp_path)
    for layer in range(3):
        if f"model.layers.{layer}.mlp.experts.0.up_proj.weight" in tensors:
            layout(tensors, layer)
    save_file(tensors, tmp_path / "model.safetensors")
    assert torch.equal(logits(tmp_path), alone)


@pytest.mark.parametrize("kind", KINDS)
def test_a_tensor_too_few_or_of_another_shape_is_named(kind: str, tmp_path: Path) -> None:
    tensors = family_folder(tmp_path, KINDS[kind])
    name = "model.layers.2.mlp.experts.5.up_proj.weight"
    save_file({key: value for key, value in tensors.items() if key != name}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=rf"tensors do not match .*1 missing: {name}"):
        load(tmp_path, device="cpu")
    save_file(tensors | {name: torch.zeros(15, 32)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=rf"wrong shape: {name} \[15, 32\] instead of \[16, 32\]"):
        load(tmp_path, device="cpu")


def naive(x: Tensor, config: ExpertsConfig, router: Tensor, bias: Tensor | None) -> tuple[list[list[int]], Tensor]:
    """Chosen experts and weights, token by token, by the formulas of each family."""
    chosen, weights = [], torch.zeros(len(x), config.count)
    for number, state in enumerate(x):
        raw = router @ state
        score = raw.sigmoid() if config.scores == "sigmoid" else raw.softmax(0)
        ranked = score + bias if bias is not None else score
        if config.bias == "weights":
            score = ranked
        size = config.count // config.groups
        if config.groups > 1:
            best = [sum(sorted(ranked[g * size : (g + 1) * size].tolist())[-2:]) for g in range(config.groups)]
            stays = sorted(range(config.groups), key=lambda g: -best[g])[: config.top_groups]
            ranked = torch.tensor([v if e // size in stays else -1e9 for e, v in enumerate(ranked.tolist())])
        some = sorted(range(config.count), key=lambda e: -ranked[e])[: config.top]
        share = score[some] / score[some].sum() if config.normalize else score[some]
        weights[number, some] = share * config.scale
        chosen.append(sorted(some))
    return chosen, weights


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"normalize": False},
        {"normalize": False, "bias": "weights"},
        {"scores": "sigmoid", "bias": "choice", "groups": 4, "top_groups": 2, "scale": 2.5},
        {"scores": "sigmoid", "bias": "choice", "groups": 2, "top_groups": 1, "top": 1},
    ],
)
def test_a_router_chooses_and_weighs_by_its_formula(changes: dict[str, Any]) -> None:
    config = ExpertsConfig(**{"count": 8, "top": 3, "width": 16, "sparse": (True,)} | changes)
    generator = torch.Generator().manual_seed(2)
    x, router, bias = (torch.randn(shape, generator=generator) for shape in ((40, 32), (8, 32), (8,)))
    chosen, weights = route(x, router, bias if config.bias else None, config)
    expected_chosen, expected_weights = naive(x, config, router, bias if config.bias else None)
    assert chosen.sort(1).values.tolist() == expected_chosen
    torch.testing.assert_close(torch.zeros(40, 8).scatter_(1, chosen, weights), expected_weights)


def test_a_pool_bounds_the_experts_of_each_block() -> None:
    config = ExpertsConfig(count=8, top=2, width=4, sparse=(True,), scores="sigmoid", pool=3, pool_block=4)
    generator = torch.Generator().manual_seed(3)
    x, router = torch.randn((12, 16), generator=generator), torch.randn((8, 16), generator=generator)
    blocks = torch.arange(12) // 4
    chosen, _ = route(x, router, None, config, blocks)
    scores = (x @ router.T).sigmoid()
    for block in range(3):
        pool = set(scores[blocks == block].amax(0).topk(3).indices.tolist())
        assert set(chosen[blocks == block].flatten().tolist()) <= pool
    free = ExpertsConfig(count=8, top=2, width=4, sparse=(True,), scores="sigmoid")
    assert not torch.equal(route(x, router, None, free)[0], chosen)


def test_a_capacity_of_llada2_takes_the_place_of_its_groups() -> None:
    """Configs of LLaDA2.2 still have the keys of groups, which the authors' code ignores when there is a capacity."""
    grouped, pooled = (match(config).decoder(config).experts for config in (LLADA2, LLADA2 | {"expert_capacity": 5}))
    assert (grouped.groups, grouped.top_groups, grouped.pool) == (4, 2, 0)
    assert (pooled.groups, pooled.top_groups, pooled.pool, pooled.pool_block) == (1, 1, 5, 32)


def test_one_grouped_product_gives_what_expert_after_expert_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(5)
    x, gate_up, down = (torch.randn(shape, generator=generator) * 0.3 for shape in ((20, 32), (8, 32, 32), (8, 32, 16)))
    chosen = torch.rand((20, 8), generator=generator)[:, :6].topk(3).indices  # two experts are never chosen
    weights = torch.rand((20, 3), generator=generator)
    alone = mix(x, chosen, weights, list(gate_up), list(down), "silu", glu)
    monkeypatch.setattr(kernels, "_grouped", lambda *_: True)
    torch.testing.assert_close(mix(x, chosen, weights, gate_up, down, "silu", glu), alone)
    expected = torch.stack(
        [
            sum(
                w * (down[e] @ (F.silu(gate_up[e, :16] @ row) * (gate_up[e, 16:] @ row)))
                for e, w in zip(c, ws, strict=True)
            )
            for row, c, ws in zip(x, chosen.tolist(), weights, strict=True)
        ]
    )
    torch.testing.assert_close(alone, expected, rtol=1e-4, atol=1e-5)


def test_only_experts_that_are_hit_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    family_folder(tmp_path, SDAR_MOE)
    model = load(tmp_path, device="cpu")
    layer = model.decoder.layers[0]
    read: list[int] = []
    weights = {id(weight): number for number, weight in enumerate(layer.experts_down_weight)}
    plain = kernels.matmul

    def matmul(x: Tensor, weight: Tensor) -> Tensor:
        if id(weight) in weights:
            read.append(weights[id(weight)])
        return plain(x, weight)

    monkeypatch.setattr(kernels, "matmul", matmul)
    model.forward(Plan.full(torch.tensor([[7]]), model.visible()))
    assert len(read) == len(set(read)) == 3


def test_routers_stay_in_float32_and_are_not_quantized(tmp_path: Path) -> None:
    family_folder(tmp_path, LLADA2 | {"hidden_size": 64, "moe_intermediate_size": 32})
    plain = logits(tmp_path)
    half = load(tmp_path, device="cpu", dtype="bfloat16")
    layer = half.decoder.layers[1]
    assert layer.router_weight.dtype == torch.float32
    assert layer.router_bias.dtype == torch.float32
    assert layer.experts_down_weight[0].dtype == torch.bfloat16
    if blocks.kernel() is None:
        pytest.importorskip("torchao")
    eight = load(tmp_path, device="cpu", quantize="int8")
    layer = eight.decoder.layers[1]
    assert type(layer.router_weight) is torch.nn.Parameter
    assert type(layer.experts_down_weight[3]) is not torch.nn.Parameter
    assert eight.parameters == half.parameters
    error = (logits(tmp_path, quantize="int8") - plain).abs().mean() / plain.abs().mean()
    assert 0 < error < 0.2


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (LLADA2 | {"num_experts_per_tok": 9}, "9 of 8 experts"),
        (LLADA2 | {"n_group": 3}, "a token cannot choose . of 3 groups of 8 experts"),
        (LLADA2 | {"topk_group": 1, "n_group": 8}, "have fewer than the 3"),
        (LLADA2 | {"num_experts": "8"}, "num_experts is '8'"),
        (LLADA2 | {"use_qk_norm": "false"}, "use_qk_norm is 'false', and true or false"),
        (LLADA2 | {"moe_router_enable_expert_bias": "false"}, "moe_router_enable_expert_bias is 'false'"),
        (LLADA2 | {"routed_scaling_factor": "2"}, "routed_scaling_factor is '2'"),
        (LLADA2 | {"expert_capacity": "2"}, "expert_capacity must be a whole number"),
        (LLADA2 | {"score_function": "softmax"}, "score_function='softmax' is not supported"),
        (LLADA_MOE | {"moe_layer_freq": [1, 1]}, "has 2 entries, and the model has 3 layers"),
        (LLADA_MOE | {"routed_scaling_factor": 2.0}, "routed_scaling_factor=2.0 is not supported"),
    ],
)
def test_what_cannot_be_is_refused_by_name(config: dict[str, Any], message: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file({}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=message):
        load(tmp_path, device="cpu")
