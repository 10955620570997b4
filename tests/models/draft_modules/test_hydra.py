"""Hydra's and Hydra++'s heads compared with the formulas in float64; tensors that are not read; refusals."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from pardec.models.draft_modules import contracts
from pardec.models.draft_modules.load import load_draft_module
from pardec.models.errors import ModelError
from pardec.models.model import LanguageModel
from pardec.models.plan import Plan
from tests.models.draft_modules.test_eagle import doubles
from tests.reference import naive_heads
from tests.reference.head_folders import CONFIGS, hydra, values, write
from tests.samplers.ar_toys import toy_ar

VOCAB, WIDTH = 40, 16
LAYER = {"heads": 2, "kv_heads": 1, "head_dim": 8, "inner": 24}  # as the toy's
KEYS = {"num_attention_heads": 2, "num_key_value_heads": 1, "rms_norm_eps": 1e-6, "rope_theta": 1e4}
TOKENS = [3, 17, 39, 0, 8, 8, 21]
STATES = values(len(TOKENS), WIDTH, seed=5, scale=1.0)


def target(dtype: torch.dtype = torch.float64) -> LanguageModel:
    return toy_ar(2, VOCAB, dtype=dtype)


def folder(path: Path, tensors: dict[str, Tensor], file: str = "hydra_lm_head.pt", **config: Any) -> Path:
    return write(path, tensors, CONFIGS["hydra"] | config, file)


def module_of(path: Path, tensors: dict[str, Tensor], model: LanguageModel | None = None, **config: Any) -> Any:
    return load_draft_module(folder(path, tensors, **config), model or target(), kind="hydra")


def test_fewer_heads_than_the_config_says_are_a_warning(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="has 3 heads of 1 block, and the config says 4 heads"):
        module = module_of(tmp_path / "few", hydra(blocks=1), hydra_num_heads=4)
    assert (module.depth, module.about[0]) == (3, "3 heads of 1 block; the config says 4 heads")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert module_of(tmp_path / "all", hydra(blocks=1), hydra_num_heads=3).about[0] == "3 heads of 1 block"


@pytest.mark.parametrize("blocks", [1, 3])
@pytest.mark.parametrize("file", ["hydra_lm_head.pt", "hydra_lm_head.safetensors"])
def test_grounded_heads_are_the_formula(file: str, blocks: int, tmp_path: Path) -> None:
    tensors, model = hydra(blocks=blocks), target()
    module: Any = load_draft_module(folder(tmp_path, tensors, file), model, kind="hydra")
    assert (module.grounded, module.depth, module.prefix) == (True, 3, None)
    assert module.parameter_count == sum(each.numel() for each in tensors.values())
    paths = torch.tensor([[[3, 1, 4], [3, 1, 5]], [[2, 7, 1], [2, 8, 2]]])  # [B, K, D]
    for size in (1, 2, 3):
        path, states = paths[..., :size], STATES[:2]
        found = module.heads[size - 1](module.inputs(states, path))
        for row, node in ((0, 0), (0, 1), (1, 0), (1, 1)):
            embedded = [model.decoder.embedding[token] for token in path[row, node]]
            true = naive_heads.hydra(tensors, states[row], embedded)
            torch.testing.assert_close(found[row, node], true, rtol=1e-10, atol=1e-10)
        logits = module.grounded_logits(states, path)
        assert logits.dtype == torch.float32
        torch.testing.assert_close(logits, found.float(), rtol=1e-6, atol=1e-6)


def test_heads_that_are_not_grounded_are_medusas_with_a_bias(tmp_path: Path) -> None:
    tensors = hydra(grounded=False)
    module = module_of(tmp_path, tensors)  # the config says that they are grounded
    assert not module.grounded
    logits = module.logits(STATES, range(3))
    for at, state in enumerate(STATES):
        for head in range(3):
            true = naive_heads.hydra(tensors, state, [state] * (head + 1))
            torch.testing.assert_close(module.heads[head](state), true, rtol=1e-10, atol=1e-10)
            torch.testing.assert_close(logits[at, head], true.float(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("grounded", [True, False])
def test_the_layer_in_front_is_the_formula(grounded: bool, tmp_path: Path) -> None:
    tensors = hydra(grounded=grounded, prefix=LAYER)
    model = target()
    with doubles():
        module = module_of(tmp_path, tensors, model, hydra_head_arch="prefix-mlp")
        module.prefix.rope.frequencies = 1e4 ** (-torch.arange(0, 8, 2, dtype=torch.float64) / 8)
        plan = Plan.full(torch.full((1, len(TOKENS)), -1), model.visible())
        refined = module.prefix(replace(plan, soft=STATES[None])).normed()[0]
    torch.testing.assert_close(refined, naive_heads.prefix(tensors, STATES, KEYS), rtol=1e-10, atol=1e-10)
    if grounded:  # whose keys are shifted by dropout
        path = torch.tensor([[[3, 9]]])
        true = naive_heads.hydra(tensors, refined[-1], list(model.decoder.embedding[path[0, 0]]))
        found = module.heads[1](module.inputs(refined[-1:], path))[0, 0]
        torch.testing.assert_close(found, true, rtol=1e-10, atol=1e-10)


def test_the_layer_has_the_targets_rotation(tmp_path: Path) -> None:
    module = module_of(tmp_path, hydra(prefix=LAYER), hydra_head_arch="mlp")  # what the file has decides
    assert module.prefix.config.frequencies == (1.0, 0.3, 0.1, 0.03)
    assert (module.prefix.config.layers, module.prefix.config.norm_eps) == (1, 1e-6)


def test_copies_of_the_embedding_are_not_read(tmp_path: Path) -> None:
    tensors = hydra(prefix=LAYER)
    broken = torch.full((VOCAB, WIDTH), torch.nan, dtype=torch.float64)
    extra = {"input_embed_fn.weight": broken, "prefix_embeding_layer.embed_tokens.weight": broken.clone()}
    extra["prefix_embeding_layer.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(4)
    names: list[str] = []
    read = contracts.read

    def noted(published: dict[str, Any], keep: Any) -> None:
        names.extend(published)
        read(published, keep)

    with patch.object(contracts, "read", noted):
        module = module_of(tmp_path, tensors | extra, hydra_head_arch="prefix-mlp")
    assert sorted(names) == sorted(tensors)
    assert all(weight.isfinite().all() for weight in module.parameters())


def test_blocks_that_are_listed_twice_are_in_memory_once(tmp_path: Path) -> None:
    tensors = hydra(blocks=3)
    for kind in ("weight", "bias"):
        tensors[f"hydra_mlp.0.2.linear.{kind}"] = tensors[f"hydra_mlp.0.1.linear.{kind}"].clone()
    module = module_of(tmp_path, tensors)
    assert module.heads[0].blocks[1] is module.heads[0].blocks[2]
    assert module.heads[1].blocks[1] is not module.heads[1].blocks[2]


# --- refusals ---


def without(*names: str, **flags: Any) -> dict[str, Tensor]:
    return {name: each for name, each in hydra(**flags).items() if name not in names}


@pytest.mark.parametrize(
    ("tensors", "config", "message"),
    [
        (hydra(), {"hydra_head_arch": "cross-attn"}, "hydra_head_arch='cross-attn' are not supported"),
        (hydra(), {"hydra_head_arch": "eagle-attn"}, "hydra_head_arch='eagle-attn' are not supported"),
        (hydra(), {"hidden_state_offset": 2}, "hidden_state_offset=2 are not supported"),
        (hydra(width=8), {}, r"hydra_mlp\.0\.0\.linear\.weight is \[8, 16\], and toy needs \[16, 32\]"),
        (hydra(vocab=99), {}, "head 0 predicts 99 tokens, and toy has 40"),
        (hydra() | {"hydra_attn.q.weight": STATES}, {}, r"that Hydra heads do not have: hydra_attn\.q\.weight"),
        (without("hydra_lm_head.1.weight", "hydra_lm_head.1.bias"), {}, "heads 1 have no last linear"),
        (without("hydra_lm_head.1.bias"), {}, r"lacks hydra_lm_head\.1\.bias, and other heads have one"),
        (without("hydra_lm_head.1.weight"), {}, r"lacks hydra_lm_head\.1\.weight"),
        (without("hydra_mlp.1.1.linear.weight"), {}, r"lacks hydra_mlp\.1\.1\.linear\.weight"),
        (
            without("hydra_mlp.1.0.res_connection.weight", "hydra_mlp.1.0.res_connection.bias"),
            {},
            "heads 1 lack res_connection",
        ),
        (
            without("hydra_mlp.1.0.res_connection.bias"),
            {},
            r"hydra_mlp\.1\.0\.res_connection does not fit hydra_mlp\.1\.0\.linear",
        ),
        (
            without("prefix_embeding_layer.norm.weight", prefix=LAYER),
            {"hydra_head_arch": "prefix-mlp"},
            r"lacks prefix_embeding_layer\.norm\.weight",
        ),
        (
            hydra(prefix=LAYER | {"inner": 20}),
            {"hydra_head_arch": "prefix-mlp"},
            r"mlp\.gate_proj\.weight is \[20, 16\], which does not fit toy",
        ),
        (
            hydra(prefix=LAYER) | {"prefix_embeding_layer.layers.1.mlp.up_proj.weight": STATES},
            {"hydra_head_arch": "prefix-mlp"},
            r"has unknown tensors: prefix_embeding_layer\.layers\.1\.mlp\.up_proj\.weight",
        ),
        (hydra(), {"hydra_head_arch": "prefix-mlp"}, r"says prefix-mlp, and the file has no prefix_embeding_layer\.\*"),
    ],
)
def test_files_that_do_not_fit_are_refused_in_a_line(
    tensors: dict[str, Tensor], config: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=message) as refusal:
        module_of(tmp_path, tensors, **config)
    assert "\n" not in refusal.value.message
