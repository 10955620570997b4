"""Kangaroo's adapter from published tensors, compared with the formula in float64; the layers it reads; refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pardec.models.draft_modules.load import load_draft_module
from pardec.models.errors import ModelError
from pardec.models.plan import Plan, Visible
from tests.reference import naive_kangaroo
from tests.samplers.ar_toys import toy_ar
from tests.samplers.module_files import random, write

SIZES = {"heads": 2, "kv_heads": 1, "head_dim": 8}


def loaded(folder: Path, tensors: dict[str, Tensor], config: dict[str, Any], **options: Any) -> Any:
    model = toy_ar(2, 40, layers=4, dtype=torch.float64)
    return load_draft_module(write(folder, tensors, config), model, kind="kangaroo", **options)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("config", [{}, {"rope_theta": 50.0, "rms_norm_eps": 1e-2}])
def test_the_adapter_is_the_formula_whole_and_token_by_token(
    config: dict[str, Any], layers: int, tmp_path: Path
) -> None:
    tensors, settings = naive_kangaroo.adapter(16, layers=layers, **SIZES)
    module, h = loaded(tmp_path, tensors, settings | config), random(7, 16, seed=3).double()
    expected = naive_kangaroo.states(tensors, settings | config, h) @ module.target.decoder.head.weight.T
    plan = Plan.full(torch.zeros(1, 7, dtype=torch.int64), Visible.causal())
    parts = {name: getattr(plan, name) for name in Plan.__slots__}
    whole = module.run(Plan(**parts | {"soft": h[None]})).logits()[0]
    torch.testing.assert_close(whole, expected.float(), rtol=1e-6, atol=1e-6)
    cache = module.new_cache(1, 7)
    for at in range(7):
        one = torch.tensor([[at]])
        step = Plan(one * 0, one, one, Visible.causal(), one[0] + 1, one * 0, soft=h[None, at : at + 1])
        torch.testing.assert_close(module.run(step, cache).logits()[0, 0], whole[at], rtol=1e-5, atol=1e-5)


def test_how_many_layers_it_reads_is_requested_or_in_its_config_or_two(tmp_path: Path) -> None:
    tensors, config = naive_kangaroo.adapter(16, **SIZES)
    for number, (more, options, exit_layers) in enumerate(
        (({}, {}, 2), ({"exit_layer": 3}, {}, 3), ({"exit_layer": 3}, {"layers": 1}, 1))
    ):
        module = loaded(tmp_path / str(number), tensors, config | more, **options)
        assert module.exit_layers == exit_layers
        assert module.states.layers == (exit_layers - 1,)
        assert str(exit_layers) in module.about[0]


def test_absent_keys_are_llamas_and_copies_of_the_target_are_left_alone(tmp_path: Path) -> None:
    """Absent config keys have Llama's defaults, and a copied embedding or head is ignored, as in published files."""
    tensors, config = naive_kangaroo.adapter(16, heads=2, kv_heads=2, head_dim=8)
    short = {name: config[name] for name in ("hidden_size", "num_attention_heads")}
    more = {"embed_tokens.weight": random(40, 16), "layers.0.self_attn.rotary_emb.inv_freq": random(4)}
    module = loaded(tmp_path, tensors | more, short)
    assert module.parameter_count == sum(value.numel() for value in tensors.values())
    assert module.about[1:] == (
        "layers.0.self_attn.rotary_emb.inv_freq: not the rotary frequencies of its config, whose own are used",
        "embed_tokens.weight differs from the target's, which is used",
    )


@pytest.mark.parametrize(
    ("change", "config", "message"),
    [
        ({}, {"exit_layer": 4}, "reads the output of layer 4, counted from 1, and toy has 4 layers"),
        ({}, {"exit_layer": 0}, "reads the output of layer 0, counted from 1"),
        ({}, {"exit_layer": "3"}, "exit_layer='3'"),
        ({}, {"exit_layer": 1.7}, r"exit_layer=1\.7"),
        ({}, {"exit_layer": True}, "exit_layer=True"),
        ({"layers.0.self_attn.o_proj.weight": None}, {}, r"lacks? .*|missing: layers\.0\.self_attn\.o_proj\.weight"),
        ({"layers.0.mlp.up_proj.weight": random(24, 16)}, {}, r"not known: layers\.0\.mlp\.up_proj\.weight"),
        ({}, {"hidden_size": None}, "lacks hidden_size"),
    ],
)
def test_files_that_do_not_fit_are_refused(
    change: dict[str, Tensor | None], config: dict[str, Any], message: str, tmp_path: Path
) -> None:
    tensors, settings = naive_kangaroo.adapter(16, **SIZES)
    changed = {name: value for name, value in (tensors | change).items() if value is not None}
    with pytest.raises(ModelError, match=message):
        loaded(tmp_path, changed, settings | config)


def test_an_adapter_of_another_width_is_refused(tmp_path: Path) -> None:
    tensors, config = naive_kangaroo.adapter(24, **SIZES)
    with pytest.raises(ModelError, match="reads states of width 24; those of toy have 16"):
        loaded(tmp_path, tensors, config)
