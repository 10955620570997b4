"""GGUF files with experts: the same weights as published, packed or not, and refusals of what changes the output."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import pardec
from pardec.models.errors import ModelError
from pardec.models.files.gguf.architecture import describe
from pardec.models.files.gguf.architectures import ARCHITECTURES
from pardec.models.files.gguf.header import read_header
from pardec.models.files.gguf.keys import EXPERTS_FOLLOWED, FOLLOWED, IGNORED, known_keys
from pardec.models.kernels.cpu import blocks
from pardec.models.kernels.cpu.blocks import BlockWeight
from pardec.models.loading.outline import memory_described, outline
from tests.models.loading.expert_gguf import EXPERTS, LAYERS, write_experts
from tests.models.loading.test_gguf import IDS, logits

FAMILIES = [name for name, each in ARCHITECTURES.items() if each.expert_width]
needs_kernel = pytest.mark.skipif(blocks.kernel() is None, reason="no kernel for packed weights here")
MIXED = {"": "Q4_0", "ffn_down_exps": "Q8_0", "blk.1.ffn_up_exps": "Q5_1", "output": "Q8_0"}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("types", [{"": "F32"}, {"": "F16"}, {"": "Q8_0"}, MIXED], ids=str)
def test_a_file_loads_as_the_weights_it_stands_for(tmp_path: Path, family: str, types: dict[str, str]) -> None:
    file = write_experts(tmp_path / "toy.gguf", family, types)
    published = pardec.load(tmp_path / "toy", device="cpu", dtype="float32")
    own = pardec.load(file, device="cpu", packed=False)
    assert own.network.family == published.network.family  # type: ignore[union-attr]
    assert torch.allclose(logits(own), logits(published), rtol=1e-5, atol=1e-5)
    assert torch.allclose(logits(pardec.load(file, device="cpu")), logits(published), rtol=1e-4, atol=1e-4)


@needs_kernel
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("types", [{"": "Q8_0"}, MIXED], ids=str)
def test_every_expert_is_packed(tmp_path: Path, family: str, types: dict[str, str]) -> None:
    file = write_experts(tmp_path / "toy.gguf", family, types)
    model = pardec.load(file, device="cpu").language_model
    parameters = dict(model.decoder.named_parameters())
    experts = {name: weight for name, weight in parameters.items() if "experts_" in name}
    assert len(experts) == 2 * LAYERS * EXPERTS
    assert all(isinstance(weight, BlockWeight) for weight in experts.values())
    routers = [weight for name, weight in parameters.items() if "router_weight" in name]
    assert [(type(each), each.dtype) for each in routers] == [(torch.nn.Parameter, torch.float32)] * LAYERS
    outlined = outline(file, device="cpu")
    assert outlined.weight_bytes == model.weight_bytes
    assert sum(matrix.packed for matrix in outlined.matrices) == len(outlined.matrices)
    assert "packed matrices: " in model.choice
    assert memory_described(file)["packed"].endswith("; --dense (packed=False) dequantizes")
    rounded = pardec.load(file, device="cpu", activations="int8")
    assert 1e-4 < (logits(rounded) - logits(pardec.Model(model))).abs().mean() < 0.5


@needs_kernel
def test_experts_of_a_type_without_a_kernel_are_dequantized_and_said(tmp_path: Path) -> None:
    file = write_experts(tmp_path / "toy.gguf", "qwen3moe", {"": "Q8_0", "ffn_up_exps": "BF16", "ffn_gate_inp": "Q8_0"})
    model = pardec.load(file, device="cpu")
    assert f"{LAYERS} plain (Q8_0+BF16)" in model.network.choice
    assert "2 Q8_0+BF16" in memory_described(file)["dequantized"]
    assert "Q8_0," not in memory_described(file)["dequantized"]  # routers are no matrices there
    parameters = dict(model.language_model.decoder.named_parameters())
    assert parameters["layers.0.router_weight"].dtype == torch.float32  # also where it is quantized in the file
    assert not isinstance(parameters["layers.0.router_weight"], BlockWeight)
    assert torch.allclose(logits(model), logits(pardec.load(tmp_path / "toy", device="cpu")), rtol=1e-4, atol=1e-4)


def test_tokens_are_those_of_the_published_model(tmp_path: Path) -> None:
    for family, samplers in (("qwen3moe", ["sequential", "lookup:k=4"]), ("llada-moe", ["threshold@dual"])):
        file = write_experts(tmp_path / f"{family}.gguf", family, {"": "Q8_0"})
        own, published = pardec.load(file, device="cpu"), pardec.load(tmp_path / family, device="cpu", dtype="float32")
        ids: Any = {"input_ids": IDS.tolist(), "max_new_tokens": 8, "stop_ids": []}
        for sampler in samplers:
            assert own.generate(**ids, sampler=sampler).tokens == published.generate(**ids, sampler=sampler).tokens


@pytest.mark.parametrize("family", FAMILIES)
def test_an_expert_s_width_follows_from_the_file(tmp_path: Path, family: str) -> None:
    fields = {f"{family}.expert_feed_forward_length": None, f"{family}.feed_forward_length": 64}  # of both experts
    file = write_experts(tmp_path / "toy.gguf", family, {"": "F32"}, fields)
    assert pardec.load(file, device="cpu").network.layers == LAYERS  # type: ignore[union-attr]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("expert_gating_func", 2),
        ("expert_weights_scale", 2.5),
        ("expert_weights_norm", None),
        ("expert_shared_count", 1),
        ("expert_shared_feed_forward_length", 32),
        ("expert_group_count", 4),
        ("leading_dense_block_count", 1),
        ("moe_every_n_layers", 2),
        ("router_logit_softcapping", 30.0),
    ],
)
def test_fields_of_experts_that_change_the_output_are_refused(
    tmp_path: Path, family: str, field: str, value: Any
) -> None:
    if field == "expert_weights_norm":
        value = not ARCHITECTURES[family].normalizes
    file = write_experts(tmp_path / "toy.gguf", family, {"": "F32"}, {f"{family}.{field}": value})
    with pytest.raises(ModelError, match=f"{family}.{field} is .*: not supported"):
        pardec.load(file, device="cpu")


@pytest.mark.parametrize("value", [3, 2.5])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_known_field_of_experts_is_followed_or_refused(tmp_path: Path, family: str, value: float) -> None:
    header = read_header(write_experts(tmp_path / "toy.gguf", family, {"": "F32"}))
    known = {key.removeprefix("{arch}.") for key in known_keys(header) if key.startswith("{arch}.")}
    ignored = {key for key in IGNORED if not key.startswith(("expert", "moe_", "interleave_moe", "router_"))}
    fields = known - FOLLOWED - EXPERTS_FOLLOWED - ignored - {"attention.causal"}
    assert len(fields) > 40
    for field in fields:
        changed = replace(header, metadata={**header.metadata, f"{family}.{field}": value})
        with pytest.raises(ModelError, match=re.escape(f"{family}.{field} is")):
            describe(changed)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"expert_count": None}, "qwen3moe.expert_count is missing"),
        ({"expert_used_count": 5}, "5 of 4 experts for a token are not possible"),
        ({"expert_used_count": 0}, "0 of 4 experts"),
        ({"expert_count": 8}, r"tensor blk.0.ffn_gate_inp.weight has shape \(4, 64\), not \(8, 64\)"),
        ({"expert_feed_forward_length": 16}, r"tensor blk.0.ffn_\w+_exps.weight has shape"),
    ],
)
def test_files_that_contradict_themselves_are_refused(tmp_path: Path, fields: dict[str, Any], problem: str) -> None:
    metadata = {f"qwen3moe.{name}": value for name, value in fields.items()}
    file = write_experts(tmp_path / "toy.gguf", "qwen3moe", {"": "F32"}, metadata)
    with pytest.raises(ModelError, match=problem):
        pardec.load(file, device="cpu")
