"""Quantized checkpoints: small folders in the published layouts, against weights made whole number by number."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.integrations.finegrained_fp8 import Fp8Dequantize

from pardec.cli.listing import _recognition
from pardec.models.errors import ModelError
from pardec.models.load import load
from pardec.models.plan import Plan
from tests.models.families.test_diffusion_gemma import published as diffusion_gemma
from tests.models.toys import rewrite

LLADA2 = Path(__file__).parents[2] / "golden" / "llada2" / "checkpoint"
BLOCK, GROUP = (16, 24), 32
Both = Callable[[str], tuple[Path, Path]]
SCHEMES: dict[str, dict[str, Any]] = {
    "fp8 blocks": {"quant_method": "fp8", "weight_block_size": list(BLOCK), "activation_scheme": "dynamic"},
    "fp8 whole": {"quant_method": "fp8", "weight_block_size": None, "activation_scheme": "dynamic"},
    "fp8 rows": {"format": "float-quantized", "num_bits": 8, "type": "float", "strategy": "channel"},
    "fp8 compressed blocks": {
        "format": "float-quantized", "num_bits": 8, "type": "float", "strategy": "block",
        "block_structure": list(BLOCK),
    },
    "int4 groups": {"format": "pack-quantized", "num_bits": 4, "type": "int", "strategy": "group", "group_size": GROUP},
    "int4 rows": {"format": "pack-quantized", "num_bits": 4, "type": "int", "strategy": "channel"},
}  # fmt: skip


def settings(scheme: str, **changes: Any) -> dict[str, Any]:
    """The `quantization_config` of a scheme."""
    own = SCHEMES[scheme] | changes
    if "quant_method" in own:
        return own
    form = own.pop("format")
    weights = own | {"symmetric": True, "dynamic": False, "actorder": own.get("actorder")}
    states = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True} if form[0] == "f" else None
    group = {"weights": weights, "input_activations": states, "targets": ["Linear"], "format": form}
    return {
        "quant_method": "compressed-tensors", "format": form, "quantization_status": "compressed",
        "config_groups": {"group_0": group}, "ignore": ["lm_head"], "kv_cache_scheme": None,
    }  # fmt: skip


def grouped(**changes: Any) -> dict[str, Any]:
    """The settings of "int4 groups", with changes of its one group."""
    config = settings("int4 groups")
    return config | {"config_groups": {"group_0": config["config_groups"]["group_0"] | changes}}


def sizes(scheme: str, rows: int, columns: int) -> tuple[int, int]:
    """Rows and columns of the blocks that share a scale."""
    kind = scheme.split(maxsplit=1)[1]
    return {"whole": (rows, columns), "rows": (1, columns), "groups": (1, GROUP)}.get(kind, BLOCK)


def quantized(scheme: str, weight: Tensor, stem: str) -> tuple[dict[str, Tensor], Tensor]:
    """The stored tensors of a matrix, and the matrix that they stand for, number by number."""
    (rows, columns), top = weight.shape, 7 if scheme.startswith("int4") else 448
    high, wide = sizes(scheme, rows, columns)
    scale = torch.empty(-(-rows // high), -(-columns // wide))
    numbers, whole = torch.empty_like(weight), torch.empty_like(weight)
    for i in range(scale.shape[0]):
        for j in range(scale.shape[1]):
            at = slice(i * high, (i + 1) * high), slice(j * wide, (j + 1) * wide)
            scale[i, j] = weight[at].abs().amax() / top
            each = weight[at] / scale[i, j]
            numbers[at] = each.round() if top == 7 else each.to(torch.float8_e4m3fn).float()
            whole[at] = numbers[at] * scale[i, j]
    if top == 448:
        name = "weight_scale_inv" if "quant_method" in SCHEMES[scheme] else "weight_scale"
        scale = scale.view(()) if scheme == "fp8 whole" else scale
        return {f"{stem}weight": numbers.to(torch.float8_e4m3fn), f"{stem}{name}": scale}, whole
    packed = torch.zeros(rows, -(-columns // 8), dtype=torch.int64)
    for column in range(columns):
        packed[:, column // 8] += (numbers[:, column].long() + 8) << 4 * (column % 8)
    packed = torch.where(packed >= 1 << 31, packed - (1 << 32), packed).to(torch.int32)
    shape = torch.tensor([rows, columns])
    return {f"{stem}weight_packed": packed, f"{stem}weight_scale": scale, f"{stem}weight_shape": shape}, whole


def both_tensors(source: Path, scheme: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The tensors of a checkpoint quantized, and those that they stand for."""
    tensors = load_file(source / "model.safetensors")
    small, full = dict(tensors), dict(tensors)
    for name, tensor in tensors.items():
        linear = name.endswith(("_proj.weight", "query_key_value.weight", "dense.weight"))
        if linear and tensor.dim() == 2 and "vision" not in name:
            parts, full[name] = quantized(scheme, tensor.float(), name.removesuffix("weight"))
            del small[name]
            small |= parts
    assert len(small) > len(tensors)
    return small, full


def written(source: Path, scheme: str, to: Path) -> tuple[Path, Path]:
    """Copies of a checkpoint: quantized, and with the weights that its quantized ones stand for."""
    stored, whole = to / "stored", to / "whole"
    for folder in (stored, whole):
        shutil.copytree(source, folder)
    small, full = both_tensors(source, scheme)
    save_file(small, stored / "model.safetensors", metadata={"format": "pt"})
    save_file(full, whole / "model.safetensors", metadata={"format": "pt"})
    return rewrite(stored, quantization_config=settings(scheme)), whole


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Both:
    """The copies of LLaDA2 by scheme."""
    return cache(lambda scheme: written(LLADA2, scheme, tmp_path_factory.mktemp("llada2")))


@cache
def logits(folder: Path) -> Tensor:
    model = load(folder, device="cpu", dtype="float32")
    tokens = torch.arange(3, 27).view(2, 12)
    return model.forward(Plan.full(tokens, model.visible())).logits()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_llada2_checkpoint_has_the_logits_of_its_whole_weights(both: Both, scheme: str) -> None:
    stored, whole = both(scheme)
    assert torch.equal(logits(stored), logits(whole))
    assert not torch.equal(logits(stored), logits(LLADA2))


@pytest.mark.parametrize("scheme", ["fp8 blocks", "int4 groups"])
def test_a_diffusion_gemma_checkpoint_has_the_logits_of_its_whole_weights(scheme: str, tmp_path: Path) -> None:
    diffusion_gemma(tmp_path / "source")
    stored, whole = written(tmp_path / "source", scheme, tmp_path)
    assert torch.equal(logits(stored), logits(whole))


def one_by_one(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors with a matrix of each expert in its own, as llm-compressor saves them."""
    result: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        stem, _, kind = name.partition(".experts.")
        for expert, matrix in enumerate(tensor if kind else ()):
            halves = matrix.chunk(2) if kind == "gate_up_proj" else (matrix,)
            for part, half in zip(("gate", "up") if len(halves) == 2 else ("down",), halves, strict=True):
                result[f"{stem}.experts.{expert}.{part}_proj.weight"] = half.clone()
        if not kind:
            result[name] = tensor
    return result


@pytest.mark.parametrize("scheme", ["fp8 rows", "fp8 blocks", "int4 groups"])
def test_experts_of_diffusion_gemma_are_read_one_by_one(scheme: str, tmp_path: Path) -> None:
    diffusion_gemma(tmp_path / "source")
    shutil.copytree(tmp_path / "source", tmp_path / "split")
    file = tmp_path / "split" / "model.safetensors"
    save_file(one_by_one(load_file(file)), file)
    assert torch.equal(logits(tmp_path / "split"), logits(tmp_path / "source"))
    stored, whole = written(tmp_path / "split", scheme, tmp_path)
    assert any(".experts.0." in name and "scale" in name for name in load_file(stored / "model.safetensors"))
    assert torch.equal(logits(stored), logits(whole))


def stacked(tmp_path: Path, change: Any = lambda scale: scale) -> tuple[Path, Path]:
    """Folders of a DiffusionGemma whose stacks of experts alone are quantized, as transformers saves them; and whole.

    `change` is made to the scales of each stack.
    """
    diffusion_gemma(tmp_path / "source")
    tensors = load_file(tmp_path / "source" / "model.safetensors")
    small, full = dict(tensors), dict(tensors)
    for name in [name for name in tensors if ".experts." in name]:
        each = [quantized("fp8 blocks", matrix.float(), "") for matrix in tensors[name]]
        full[name] = torch.stack([matrix for _, matrix in each])
        small[name] = torch.stack([parts["weight"] for parts, _ in each])
        small[f"{name}_scale_inv"] = change(torch.stack([parts["weight_scale_inv"] for parts, _ in each]))
    for folder, held in (("stored", small), ("whole", full)):
        shutil.copytree(tmp_path / "source", tmp_path / folder)
        save_file(held, tmp_path / folder / "model.safetensors")
    return rewrite(tmp_path / "stored", quantization_config=settings("fp8 blocks")), tmp_path / "whole"


def test_experts_of_diffusion_gemma_are_read_stacked(tmp_path: Path) -> None:
    stored, whole = stacked(tmp_path)
    assert torch.equal(logits(stored), logits(whole))


@pytest.mark.parametrize("change", [lambda scale: scale[:-1], lambda scale: scale[:, :-1], lambda scale: scale.sum()])
def test_scales_of_another_number_of_experts_are_refused(change: Any, tmp_path: Path) -> None:
    stored, _ = stacked(tmp_path, lambda scale: change(scale).contiguous())
    with pytest.raises(
        ModelError, match=r"experts\.(gate_up|down)_proj .* has scales of torch\.float32 .*, and blocks of"
    ):
        load(stored, device="cpu")


def test_fp8_blocks_are_made_whole_as_transformers_does() -> None:
    weight = torch.randn(32, 48, generator=torch.Generator().manual_seed(0))
    parts, whole = quantized("fp8 blocks", weight, "")
    theirs = Fp8Dequantize(None)._dequantize_one(parts["weight"], parts["weight_scale_inv"], torch.float32)
    assert torch.equal(theirs, whole)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"quant_method": "gptq", "bits": 4}, "is quantized by 'gptq', which is not supported"),
        ({"bits": 4}, "is quantized by None, which is not supported"),
        ("fp8", "has quantization_config='fp8', which is no object"),  # type: ignore[list-item]
        (settings("fp8 blocks", rotate=True), "rotate=True"),
        (settings("fp8 blocks", weight_block_size=16), "weight_block_size=16, which is no pair of sizes"),
        (settings("fp8 blocks", weight_block_size=[1, 2, 3]), "weight_block_size=.1, 2, 3., which is no pair of sizes"),
        (settings("int4 groups") | {"rotation_config": {"size": 8}}, "rotation_config={'size': 8}"),
        (settings("int4 groups", rotate=True), "weights.rotate=True"),
        (grouped(smooth=True), "smooth=True"),
        (grouped(output_activations={"num_bits": 8}), "output_activations={'num_bits': 8}"),
        (
            grouped(weights=settings("int4 groups")["config_groups"]["group_0"]["weights"] | {"dynamic": True}),
            "dynamic=True",
        ),
        (settings("fp8 blocks", activation_scheme="static"), "activation_scheme='static'"),
        (settings("fp8 blocks", expert_dtype="fp4"), "expert_dtype='fp4'"),
        (settings("int4 groups", format="nvfp4-pack-quantized"), "format='nvfp4-pack-quantized'"),
        (settings("int4 groups", num_bits=3), "num_bits=3"),
        (settings("int4 groups", actorder="group"), "actorder='group'"),
        (settings("int4 groups") | {"kv_cache_scheme": {"num_bits": 8}}, "kv_cache_scheme={'num_bits': 8}"),
        (settings("int4 groups", group_size=16), r"scales of .*, and blocks of \[1, 16\] need"),
        (settings("fp8 rows"), "is quantized, and lacks model.layers.0"),
    ],
)
def test_what_is_not_known_is_refused_by_name(both: Both, config: dict[str, Any], message: str, tmp_path: Path) -> None:
    stored = shutil.copytree(both("int4 groups")[0], tmp_path / "stored")
    rewrite(stored, quantization_config=config)
    for read in (load, shown):  # `pardec show` refuses what `load` does, as far as no weight has to be read
        if read is load or "scales of" not in message:
            with pytest.raises(ModelError, match=message.replace("{", r"\{")):
                read(stored)


def shown(folder: Path) -> dict[str, Any]:
    """What `pardec show` says of a folder."""
    return _recognition(str(folder), {})


def test_show_says_how_a_checkpoint_is_quantized(both: Both) -> None:
    for scheme, said in (
        ("fp8 blocks", "8-bit floating-point numbers, a scale for 16 rows and 24 columns"),
        ("fp8 whole", "8-bit floating-point numbers, a scale for all rows and all columns"),
        ("int4 groups", "packed 4-bit integers, a scale for 1 rows and 32 columns"),
    ):
        stored, _ = both(scheme)
        assert shown(stored)["quantized"] == f"{said}, made whole as it is read"
        assert shown(stored)["family"].startswith("llada2 ")


def test_missing_and_foreign_tensors_are_named(both: Both, tmp_path: Path) -> None:
    stored = shutil.copytree(both("int4 groups")[0], tmp_path / "stored")
    file = stored / "model.safetensors"
    tensors = load_file(file)
    name = next(each for each in tensors if each.endswith("weight_packed"))
    save_file({key: value for key, value in tensors.items() if key != name}, file)
    for read in (load, shown):
        with pytest.raises(ModelError, match=f"is quantized, and lacks {name}"):
            read(stored)
    save_file(tensors | {name.replace("packed", "g_idx"): torch.zeros(4, dtype=torch.int32)}, file)
    for read in (load, shown):
        with pytest.raises(ModelError, match="weight_g_idx"):
            read(stored)


@pytest.mark.parametrize("scheme", ["fp8 blocks", "fp8 compressed blocks", "int4 groups"])
@pytest.mark.parametrize("change", [lambda scale: scale.T.contiguous(), lambda scale: scale.view(torch.int32)])
def test_scales_of_another_shape_or_type_are_refused(both: Both, scheme: str, change: Any, tmp_path: Path) -> None:
    stored = shutil.copytree(both(scheme)[0], tmp_path / "stored")
    file = stored / "model.safetensors"
    tensors = load_file(file)
    name = next(each for each, held in tensors.items() if "weight_scale" in each and held.shape[0] != held.shape[1] > 1)
    save_file(tensors | {name: change(tensors[name])}, file)
    with pytest.raises(ModelError, match=r"has scales of torch\.(float32|int32) .*, and blocks of"):
        load(stored, device="cpu")
