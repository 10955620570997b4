"""MTP layers from published tensors: the formula in float64, whole checkpoints with such a layer, refusals by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import pardec
from pardec.models.draft_modules.load import load_draft_module
from pardec.models.errors import ModelError
from pardec.models.load import load
from pardec.models.loading.recognition import describe
from pardec.models.plan import Plan
from tests.models.draft_modules.test_eagle import TOKENS, doubles, drafted, hidden, same_rope
from tests.models.families.test_families import agree, published, rewrite
from tests.models.files.test_quantized import quantized, settings
from tests.reference import naive_mtp
from tests.samplers.ar_toys import toy_ar
from tests.samplers.module_files import random, write

SIZES = {"heads": 2, "kv_heads": 1, "head_dim": 8}
STYLES = ("MiMo", "nextn")


def loaded(folder: Path, tensors: dict[str, Tensor], config: dict[str, Any]) -> Any:
    model = toy_ar(2, 40, layers=4, dtype=torch.float64)
    return load_draft_module(write(folder, tensors, config), model, kind="mtp")


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("style", STYLES)
def test_mtp_layer_is_its_formula_for_known_states_and_its_own(style: str, biased: bool, tmp_path: Path) -> None:
    tensors, config = naive_mtp.layer(style, 16, biased=biased, **SIZES)
    with doubles():
        module = loaded(tmp_path, tensors, config)
        same_rope(module, config)
        known = hidden(module.target, module, TOKENS[:5])
        states, logits = drafted(module, TOKENS[1:], module.fuse(known)[:4])
    decoder = module.target.decoder
    fed, read = naive_mtp.draft(style, tensors, config, decoder.embedding, TOKENS[1:], known[:4])
    torch.testing.assert_close(states, fed, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(logits, (read @ decoder.head.weight.T).float(), rtol=1e-6, atol=1e-6)


def test_mtp_layer_reads_normed_states_in_one_layout_and_not_in_the_other(tmp_path: Path) -> None:
    for style, normed, layers in (("MiMo", False, (3,)), ("nextn", True, ())):
        module = loaded(tmp_path / style, *naive_mtp.layer(style, 16, **SIZES))
        assert (module.states.normed, module.states.layers) == (normed, layers)
        assert module.about == (f"an MTP layer in {style} layout, {naive_mtp.STEMS[style]}*",)


@pytest.mark.parametrize(
    ("style", "change", "config", "message"),
    [
        ("MiMo", {}, {"num_nextn_predict_layers": 2}, "num_nextn_predict_layers=2, and its files have 1"),
        ("nextn", {}, {"num_mtp_layers": 3}, "num_mtp_layers=3, and its files have 1"),
        ("nextn", {"mlp.experts.0.up_proj.weight": random(8, 16)}, {}, "a mixture of experts is not supported"),
        ("nextn", {"self_attn.kv_a_proj_with_mqa.weight": random(8, 16)}, {}, r"\(MLA\) is not supported"),
        ("MiMo", {"self_attn.sinks": random(2)}, {}, r"not known: model\.mtp_layers\.0\.self_attn\.sinks"),
        ("MiMo", {"final_layernorm.weight": None}, {}, r"missing: model\.mtp_layers\.0\.final_layernorm\.weight"),
        ("nextn", {"eh_proj.weight": random(16, 16)}, {}, r"eh_proj\.weight \[16, 16\] instead of \[16, 32\]"),
        ("nextn", {}, {"hidden_size": 24}, "reads states of width 24; those of toy have 16"),
    ],
)
def test_mtp_layers_that_do_not_fit_are_refused_by_name(
    style: str, change: dict[str, Tensor | None], config: dict[str, Any], message: str, tmp_path: Path
) -> None:
    tensors, settings = naive_mtp.layer(style, 16, **SIZES)
    stem = naive_mtp.STEMS[style]
    changed = tensors | {stem + name: value for name, value in change.items()}
    with pytest.raises(ModelError, match=message):
        loaded(tmp_path, {name: value for name, value in changed.items() if value is not None}, settings | config)


@pytest.mark.parametrize("name", ["mtp.fc.weight", "model.mtp_block.0.self_attn.q_proj.weight"])
def test_mtp_layouts_that_are_not_supported_are_refused_by_their_tensors(name: str, tmp_path: Path) -> None:
    _, config = naive_mtp.layer("nextn", 16, **SIZES)
    with pytest.raises(ModelError, match=f"has tensors {name}, a layout that is not supported"):
        loaded(tmp_path, {name: random(16, 32)}, config)


def test_a_quantized_mtp_layer_is_made_whole(tmp_path: Path) -> None:
    tensors, config = naive_mtp.layer("MiMo", 16, **SIZES)
    small = {name: tensor.float() for name, tensor in tensors.items()}
    full = dict(small)
    for name in [name for name in tensors if name.endswith("_proj.weight")]:
        parts, full[name] = quantized("fp8 blocks", small.pop(name), name.removesuffix("weight"))
        small |= parts
    stored = loaded(tmp_path / "stored", small, config | {"quantization_config": settings("fp8 blocks")})
    whole = loaded(tmp_path / "whole", full, config)
    for (name, one), (_, other) in zip(stored.named_parameters(), whole.named_parameters(), strict=True):
        assert torch.equal(one, other), name
    plain = loaded(tmp_path / "plain", full, config | {"quantization_config": settings("fp8 blocks")})
    assert torch.equal(plain.projection, whole.projection)  # a copy whose layer was left as it is


def test_copies_of_the_target_in_an_mtp_layer_are_compared(tmp_path: Path) -> None:
    tensors, config = naive_mtp.layer("nextn", 16, **SIZES)
    stem = naive_mtp.STEMS["nextn"]
    copies = {f"{stem}embed_tokens.weight": random(40, 16), f"{stem}shared_head.head.weight": random(40, 16, seed=1)}
    assert loaded(tmp_path, tensors | copies, config).about[1:] == (
        f"{stem}embed_tokens.weight differs from the target's, which is used",
        f"{stem}shared_head.head.weight differs from the target's, which is used",
    )


def with_layer(folder: Path, style: str) -> Any:
    """A random checkpoint of four layers with an MTP layer beside them; returns the model of transformers."""
    reference = published("Qwen2", folder, num_key_value_heads=2, num_hidden_layers=4)
    config, weights = reference.config, folder / "model.safetensors"
    sizes = {"heads": config.num_attention_heads, "kv_heads": 2, "inner": config.intermediate_size}
    head_dim = config.hidden_size // config.num_attention_heads
    tensors, _ = naive_mtp.layer(style, config.hidden_size, head_dim=head_dim, biased=True, **sizes)
    save_file(load_file(weights) | tensors, weights)
    mimo = {"model_type": "mimo", "architectures": ["MiMoForCausalLM"], "attention_bias": True, "use_mrope": False}
    rewrite(folder, num_nextn_predict_layers=1, **(mimo if style == "MiMo" else {}))
    return reference


@pytest.mark.parametrize("style", STYLES)
def test_checkpoints_with_an_mtp_layer_load_and_draft_with_it(style: str, tmp_path: Path) -> None:
    reference = with_layer(tmp_path, style)
    model = load(tmp_path, device="cpu")
    assert model.family == {"MiMo": "mimo", "nextn": "qwen2"}[style]
    tokens = torch.randint(0, 61, (2, 20), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        agree(model.forward(Plan.full(tokens, model.visible())).logits(), reference(tokens).logits)
    assert describe(tmp_path)["MTP layer"].endswith("which draft for the model: -s mtp")
    whole = pardec.load(tmp_path, device="cpu")
    asked: dict[str, Any] = {"input_ids": [[5, 6, 7], [9, 8, 7, 6, 5]], "max_new_tokens": 12, "stop_ids": []}
    plain, own = (whole.generate(sampler=spec, **asked) for spec in ("sequential", "mtp"))
    assert own.tokens == plain.tokens
    assert own.draft_forwards


def test_checkpoints_without_an_mtp_layer_say_so_for_mtp_without_a_name(tmp_path: Path) -> None:
    with_layer(tmp_path, "MiMo")
    weights = tmp_path / "model.safetensors"
    kept = {name: value for name, value in load_file(weights).items() if "mtp_layers" not in name}
    save_file(kept, weights)
    with pytest.warns(UserWarning, match="MTP layers: 1 in config.json, and none in the files; mtp drafts with"):
        whole = pardec.load(tmp_path, device="cpu")
    with pytest.raises(ModelError, match="have no draft layer of kind mtp"):
        whole.generate(input_ids=[[5, 6]], max_new_tokens=4, sampler="mtp")
    assert describe(tmp_path)["MTP layer"] == "1 in config.json, and none in the files"
    assert json.loads((tmp_path / "config.json").read_text())["num_nextn_predict_layers"] == 1


@pytest.mark.parametrize(
    ("named", "said"), [(2, "2 in config.json, and 1 in the files"), (1, "16 tensors, which draft")]
)
def test_show_and_load_say_which_mtp_layers_the_files_lack(
    named: int, said: str, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    with_layer(tmp_path, "nextn")
    rewrite(tmp_path, num_nextn_predict_layers=named)
    assert describe(tmp_path)["MTP layer"].startswith(said)
    load(tmp_path, device="cpu")
    warned = [str(each.message) for each in recwarn if "MTP layers" in str(each.message)]
    assert warned == [] if named == 1 else said in warned[0]
