"""Gemma compared with transformers: logits and greedy tokens; configs that are not read natively."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GemmaConfig, GemmaForCausalLM

import pardec
from pardec.models.families import FAMILIES, Unsupported, match
from tests.models.toys import SMALL

PROMPTS = torch.randint(3, 61, (2, 12), generator=torch.Generator().manual_seed(1))


def published(folder: Path, **changes: Any) -> GemmaForCausalLM:
    """A random Gemma, saved to `folder`; heads times head size differs from the width."""
    config = GemmaConfig(**SMALL | {"pad_token_id": 0, "num_key_value_heads": 1, "head_dim": 20} | changes)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = GemmaForCausalLM(config).eval()
        for weight in model.parameters():
            torch.nn.init.normal_(weight, std=0.2)
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize(
    "changes",
    [{}, {"num_key_value_heads": 4, "tie_word_embeddings": False}, {"num_key_value_heads": 2, "attention_bias": True}],
    ids=["one key head", "untied", "grouped, biased"],
)
def test_logits_and_greedy_tokens_are_those_of_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    reference = published(tmp_path, **changes)
    model = pardec.load(tmp_path, device="cpu", dtype="float32")
    assert model.language_model.family == "gemma"
    with torch.no_grad():
        logits = reference(PROMPTS).logits
        tokens = [reference.generate(row[None], max_new_tokens=20, do_sample=False)[0, 12:].tolist() for row in PROMPTS]
    assert logits.abs().max() > 1
    torch.testing.assert_close(model.logits(PROMPTS), logits, rtol=0, atol=1e-4)
    for sampler in ("sequential", "lookup"):
        assert model.generate(input_ids=PROMPTS.tolist(), sampler=sampler, max_new_tokens=20).tokens == tokens


def test_the_first_checkpoints_say_gelu_and_mean_its_tanh_approximation(tmp_path: Path) -> None:
    reference, file = published(tmp_path), tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"hidden_act": "gelu", "hidden_activation": None}))
    model = pardec.load(tmp_path, device="cpu", dtype="float32")
    assert model.language_model.family == "gemma"
    with torch.no_grad():
        torch.testing.assert_close(model.logits(PROMPTS), reference(PROMPTS).logits, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    "change", [{"hidden_act": "relu"}, {"is_causal": False}, {"use_bidirectional_attention": True}]
)
def test_other_activations_and_masks_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(Unsupported, match=rf"{next(iter(change))}=.* is not supported natively"):
        FAMILIES["gemma"].decoder({"model_type": "gemma", **change})


@pytest.mark.parametrize("kind", ["gemma2", "gemma3", "gemma3_text", "gemma4", "recurrent_gemma", "diffusion_gemma"])
def test_later_generations_are_not_its_own(kind: str) -> None:
    assert match({"model_type": kind}) is not FAMILIES["gemma"]
