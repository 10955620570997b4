"""Nemotron-Labs-Diffusion compared with a plain version of its rule on transformers' Llama, without a cache."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import pardec
from pardec.models.errors import SpecError
from pardec.models.load import load
from pardec.models.plan import Plan
from tests.models.toys import SMALL, library_model, rewrite

MASK = 60


def published(folder: Path, **changes: Any) -> Any:
    """A random Llama model, saved under Nemotron's names and keys."""
    sizes = SMALL | {"num_key_value_heads": 2, "max_position_embeddings": 256}
    model = library_model(transformers.LlamaConfig(**sizes), seed=3)
    model.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    tensors = {
        name.replace("model.", "encoder.", 1).replace("lm_head", "diffusion_head"): value
        for name, value in tensors.items()
    }
    tensors |= {f"encoder.layers.{i}.self_attn.{part}_scale": torch.ones(1) for i in range(2) for part in "kv"}
    save_file(tensors, folder / "model.safetensors")
    kind = {"model_type": "nemotron_labs_diffusion", "architectures": ["NemotronLabsDiffusionModel"]}
    rewrite(folder, **kind, mask_token_id=MASK, **changes)
    return model


def naive(reference: Any, prompt: list[int], count: int, block: int, tau: float) -> tuple[list[int], int]:
    """Decodes by the published rule: every forward computes the whole text, with the mask of its mode."""
    text, forwards = list(prompt), 0
    while len(text) < len(prompt) + count:
        begin = len(text)
        forwards += 1
        text.append(int(logits(reference, text, begin=len(text))[-1].argmax()))
        size = min(block, len(prompt) + count - begin)
        text += [MASK] * (size - 1)
        while MASK in text[begin:]:
            forwards += 1
            rows = logits(reference, text, begin=begin)
            open_at = [at for at in range(begin, len(text)) if text[at] == MASK]
            chances = rows[open_at].softmax(-1).max(-1)
            best = int(chances.values.argmax())
            for index, at in enumerate(open_at):
                if chances.values[index] >= tau or index == best:
                    text[at] = int(chances.indices[index])
    return text, forwards


@torch.no_grad()
def logits(reference: Any, text: list[int], begin: int, forbidden: Sequence[int] = (MASK,)) -> torch.Tensor:
    """Logits of every position, `forbidden` tokens at -inf: causal before `begin`, bidirectional from there on."""
    order = torch.arange(len(text))
    sees = (order <= order[:, None]) | (order[:, None] >= begin)
    additive = torch.zeros(1, 1, len(text), len(text)).masked_fill(~sees, torch.finfo(torch.float32).min)
    rows = reference(torch.tensor([text]), attention_mask=additive).logits[0]
    rows[:, list(forbidden)] = -torch.inf
    return rows


@pytest.mark.parametrize(("block", "tau"), [(8, 0.02), (8, 0.9), (5, 0.05), (4, 0.0)])
def test_every_decode_is_the_rules(tmp_path: Path, block: int, tau: float) -> None:
    reference = published(tmp_path)
    model = pardec.load(tmp_path, device="cpu")
    generator = torch.Generator().manual_seed(block)
    prompts = [torch.randint(3, 59, (n,), generator=generator).tolist() for n in (9, 4, 13)]
    arguments = {"sampler": f"threshold:tau={tau}", "max_new_tokens": 19, "block_length": block, "stop_ids": []}
    together = model.generate(input_ids=prompts, **arguments)
    for row, prompt in enumerate(prompts):
        expected, forwards = naive(reference, prompt, 19, block, tau)
        alone = model.generate(input_ids=[prompt], **arguments | {"sampler": f"threshold:tau={tau}@causal"})
        assert alone.sequences[0].tolist() == expected
        assert alone.nfe[0] == forwards
        assert together.sequences[row, : len(expected)].tolist() == expected


def test_it_is_causal_where_nothing_is_denoised(tmp_path: Path) -> None:
    reference = published(tmp_path)
    model = load(tmp_path, device="cpu")
    tokens = torch.randint(0, 59, (2, 17), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = reference(tokens).logits
    found = model.forward(Plan.full(tokens, model.visible())).logits()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_queries_grow_beyond_the_first_length(tmp_path: Path) -> None:
    yarn = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 8}
    published(tmp_path, rope_parameters=yarn | {"llama_4_scaling_beta": 0.5})
    grown = load(tmp_path, device="cpu")
    plain = load(rewrite(tmp_path, rope_parameters=yarn), device="cpu")
    tokens = torch.arange(3, 19)[None]
    both = [model.forward(Plan.full(tokens, model.visible())).logits() for model in (grown, plain)]
    torch.testing.assert_close(both[0][:, :8], both[1][:, :8], rtol=1e-5, atol=1e-5)  # only one is fused
    assert not torch.allclose(both[0][:, 8:], both[1][:, 8:], atol=1e-4)


def test_other_caches_are_refused(tmp_path: Path) -> None:
    published(tmp_path)
    model = pardec.load(tmp_path, device="cpu")
    for cache in ("none", "dual", "block", "window"):
        with pytest.raises(SpecError, match=f"the cache '{cache}'"):
            model.generate(input_ids=[[3, 4]], sampler=f"threshold@{cache}", max_new_tokens=4)
