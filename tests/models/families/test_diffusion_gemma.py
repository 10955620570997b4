"""DiffusionGemma compared with transformers: logits of text and canvas, and `generate` with the same random numbers.

That generate is the plain version of `selfcondition`, `anneal`, `denoise` and `renoise`: all of them decide its tokens.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import peft
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import DiffusionGemmaConfig, DiffusionGemmaForBlockDiffusion, DiffusionGemmaTextConfig
from transformers.models.diffusion_gemma.generation_diffusion_gemma import (
    EntropyBoundSampler,
    EntropyBoundSamplerConfig,
)
from transformers.models.gemma4 import Gemma4VisionConfig

import pardec
from pardec.likelihood import Likelihood
from pardec.models.errors import ModelError, SpecError
from pardec.models.load import load
from pardec.models.plan import Plan
from pardec.samplers.rng import Keyed
from pardec.token_probabilities import Batches, TokenProbabilities
from tests.models.toys import rewrite

VOCAB, CANVAS = 61, 8
PATTERN = ["sliding_attention", "sliding_attention", "full_attention"]
SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "global_head_dim": 16, "num_global_key_value_heads": 1,
    "sliding_window": 6, "layer_types": PATTERN, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 12,
    "max_position_embeddings": 256,
}  # fmt: skip
VARIANTS = {
    "as published": {},
    "one key head": {"num_key_value_heads": 1, "num_global_key_value_heads": 2},
    "a wider window": {"sliding_window": 30},
    "one expert": {"top_k_experts": 1, "final_logit_softcapping": 5.0},
    "full layers alone": {"layer_types": ["full_attention"] * 3},
}


def published(folder: Path, spread: float = 0.15, **changes: Any) -> DiffusionGemmaForBlockDiffusion:
    """A random model with a vision tower, saved to `folder`."""
    model = _published(spread, json.dumps(changes))
    model.save_pretrained(folder)
    return model


@cache
def _published(spread: float, written: str) -> DiffusionGemmaForBlockDiffusion:
    """The wider its weights spread, the more a step makes of a rounding error in what it is conditioned on."""
    changes = json.loads(written)
    torch.manual_seed(0)
    vision = Gemma4VisionConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2,
        head_dim=8,
    )  # fmt: skip
    text = DiffusionGemmaTextConfig(**SHAPE | changes)
    config = DiffusionGemmaConfig(text_config=text, vision_config=vision, canvas_length=CANVAS)
    model = DiffusionGemmaForBlockDiffusion(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * spread)
        for name, buffer in model.named_buffers():
            if "layer_scalar" in name:
                buffer.fill_(float(torch.rand(1) + 0.5))
    return model


def tokens(*shape: int) -> Tensor:
    return torch.randint(0, VOCAB, shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("variant", VARIANTS)
def test_text_and_canvas_give_the_logits_of_transformers(variant: str, tmp_path: Path) -> None:
    reference, prompt = published(tmp_path, **VARIANTS[variant]), 11
    model = load(tmp_path, device="cpu")
    text, canvas = tokens(2, prompt), tokens(2, CANVAS)
    before = torch.randn((2, CANVAS, VOCAB), generator=torch.Generator().manual_seed(1)) * 3
    length, order = prompt + CANVAS, torch.arange(prompt + CANVAS).expand(2, -1)
    visible = model.visible(torch.zeros(2, length, dtype=torch.bool), torch.full((2,), prompt))
    for predicted in (None, before):
        with torch.no_grad():
            expected = reference(input_ids=text, decoder_input_ids=canvas, self_conditioning_logits=predicted).logits
        soft = None
        if predicted is not None:
            soft = torch.nn.functional.pad(model.embed(predicted.softmax(-1)), (0, 0, prompt, 0))
        lengths = torch.full((2,), length)
        both = Plan(
            torch.cat([text, canvas], 1), order, order, visible, lengths, order[:, prompt:], uniform=length,
            span=(0, length), soft=soft,
        )  # fmt: skip
        torch.testing.assert_close(model.forward(both).logits(), expected, rtol=0, atol=1e-4)
        cache = model.new_cache(2, length)
        model.forward(Plan.full(text, model.visible()), cache)
        alone = Plan(
            canvas, order[:, prompt:], order[:, prompt:], visible, lengths, order[:, :CANVAS], uniform=length,
            span=(prompt, length), soft=None if soft is None else soft[:, prompt:],
        )  # fmt: skip
        torch.testing.assert_close(model.forward(alone, cache).logits(), expected, rtol=0, atol=1e-4)


@contextmanager
def drawing(seed: int, first: int) -> Iterator[None]:
    """Makes transformers draw pardec's random numbers: each step's canvas from `first` on, and its tokens."""
    source, row, steps = Keyed((seed,)), np.array([0]), [0]
    begins = [first]

    def noise(self: EntropyBoundSampler, batch_size: int, device: Any) -> Tensor:
        at = torch.arange(begins[0], begins[0] + CANVAS)[None]
        return (source.uniform(row, np.array(steps), at, "noise") * VOCAB).long()

    def multinomial(chances: Tensor, num_samples: int) -> Tensor:
        at = torch.arange(begins[0], begins[0] + CANVAS)[None]
        uniform = source.uniform(row, np.array(steps), at, "token", VOCAB)[0]
        steps[0] += 1
        return (chances.double().log() - (-uniform.log()).log()).argmax(1, keepdim=True)

    finish = DiffusionGemmaForBlockDiffusion._finalize_canvas

    def finalize(**arguments: Any) -> Any:
        begins[0] += CANVAS
        return finish(**arguments)

    with (
        mock.patch.object(EntropyBoundSampler, "initialize_canvas", noise),
        mock.patch.object(torch, "multinomial", multinomial),
        mock.patch.object(DiffusionGemmaForBlockDiffusion, "_finalize_canvas", staticmethod(finalize)),
    ):
        yield


def published_generate(
    reference: DiffusionGemmaForBlockDiffusion,
    prompt: list[int],
    seed: int,
    steps: int,
    bound: float,
    confidence: float,
) -> list[int]:
    """Two canvases by transformers' own generate, with pardec's random numbers."""
    with drawing(seed, len(prompt)), torch.no_grad():
        expected = reference.generate(
            torch.tensor([prompt]), max_new_tokens=2 * CANVAS, max_denoising_steps=steps, t_min=0.4, t_max=0.8,
            sampler_config=EntropyBoundSamplerConfig(bound),
            stability_threshold=1, confidence_threshold=confidence, eos_token_id=None, pad_token_id=0,
        )  # fmt: skip
    found: list[int] = expected.sequences[0].tolist()
    return found


def published_rule(steps: int, bound: float, confidence: float) -> str:
    rule = f"gamma={bound},confidence={confidence},steps={steps}"
    return f"selfcondition+anneal:high=0.8,low=0.4,steps={steps}+denoise:{rule}+renoise:{rule}@causal"


@pytest.mark.parametrize(
    ("steps", "bound", "confidence"), [(6, 0.1, 0.005), (12, 3.0, 2.5), (9, 1.0, 100.0), (1, 0.1, 0.005)]
)
def test_generate_is_that_of_transformers(steps: int, bound: float, confidence: float, tmp_path: Path) -> None:
    reference, prompts = published(tmp_path, spread=0.05), [tokens(4).tolist(), tokens(13).tolist()]
    model = pardec.load(tmp_path, device="cpu")
    spec = published_rule(steps, bound, confidence)
    arguments = {"max_new_tokens": 2 * CANVAS, "block_length": CANVAS, "temperature": 1.0, "stop_ids": []}
    together = model.generate(input_ids=prompts, sampler=spec, seed=[5, 6], **arguments)
    for row, prompt in enumerate(prompts):
        alone = model.generate(input_ids=[prompt], sampler=spec, seed=[5 + row], **arguments)
        if row == steps // 3 % 2:  # each case with one of the prompts
            expected = published_generate(reference, prompt, 5 + row, steps, bound, confidence)
            assert alone.sequences[0].tolist() == expected
        assert together.sequences[row, : len(prompt) + 2 * CANVAS].tolist() == alone.sequences[0].tolist()
        assert together.nfe[row] == alone.nfe[0]


def test_what_belongs_to_masks_is_refused(tmp_path: Path) -> None:
    published(tmp_path)
    model = pardec.load(tmp_path, device="cpu")
    with pytest.raises(SpecError, match="does not store finished text causally"):
        model.generate(input_ids=[[3, 4]], sampler="threshold@dual", max_new_tokens=4)
    with pytest.raises(pardec.ModelError, match="mask_id=3 was given"):
        pardec.load(tmp_path, device="cpu", mask_id=3)
    for spec in ("renoise", "selfcondition+renoise"):
        with pytest.raises(SpecError, match="random canvases|models trained with it"):
            pardec.load("tiny-dream").generate("Tom has 3 cups.", sampler=spec, max_new_tokens=4)
    for spec in ("selfcondition+threshold", "renoise+threshold", "denoise"):
        with pytest.raises(SpecError, match="renoise|a canvas of random tokens"):
            model.generate(input_ids=[[3, 4]], sampler=f"{spec}@causal", max_new_tokens=4)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"per_layer_config": {"1": {"sliding_window": 3}}}, "per_layer_config with sliding_window=3"),
        ({"per_layer_config": {"1": {"head_dim": 16, "rms_norm_eps": 0.5}}}, "per_layer_config with rms_norm_eps"),
        ({"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}}, "lacks full_attention"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 300.0}}}, "rope_parameters lacks sliding_attention"),
        ({"sliding_window": 1}, "sliding_window=1"),
    ],
)
def test_what_the_stack_does_not_compute_is_refused_by_name(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    published(tmp_path)
    file = tmp_path / "config.json"
    config = json.loads(file.read_text())
    config["text_config"] |= change
    file.write_text(json.dumps(config))
    with pytest.raises(ModelError, match=said):
        pardec.load(tmp_path, device="cpu")


def test_prompts_that_begin_alike_share_keys_and_values(tmp_path: Path) -> None:
    """Prefix reuse with layers of two shapes; canvas and finished text are conditioned differently."""
    published(tmp_path, spread=0.05)
    model, base = pardec.load(tmp_path, device="cpu"), tokens(40).tolist()
    prompts = [base, [*base[:36], 1, 2, 3], base[:17], [5] * 20]
    options: dict[str, Any] = {"max_new_tokens": 16, "stop_ids": [], "temperature": 0.8, "block_length": CANVAS}
    options["sampler"] = published_rule(6, 1.0, 0.005)
    plain = model.generate(input_ids=prompts, **options)
    cache = model.cache_prefixes(4)
    results = [model.generate(input_ids=prompts, **options) for _ in range(2)]
    assert [result.tokens for result in results] == [plain.tokens] * 2
    assert results[1].reused == [32, 32, 16, 16]
    assert cache is not None
    longer = [*base, *plain.tokens[0][:12]]  # the answer's first block is final, the last is not stored
    assert model.generate(input_ids=[longer], **options).reused == [48]


def spelling(folder: Path, **changes: Any) -> pardec.Model:
    """A model with tiny-dream's vocabulary and tokenizer."""
    published(folder, vocab_size=361, bos_token_id=2, eos_token_id=3, pad_token_id=0, **changes)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(Path(str(pardec.load("tiny-dream", device="cpu").path)) / name, folder)
    return pardec.load(folder, device="cpu")


def test_templates_of_ids_are_filled_and_texts_refused(tmp_path: Path) -> None:
    """The model has no mask token: open positions hold random tokens, so a text template cannot mark them."""
    model = spelling(tmp_path)
    for template in ([30, None, 31], [[30, None, None, 31], [None, 7]]):
        several = isinstance(template[0], list)
        made = model.generate(["Tom has 8 cups."] * (2 if several else 1), template=template, seed=1)
        for row, wanted in zip(made.tokens, template if several else [template], strict=True):
            assert all(want in (None, token) for token, want in zip(row, wanted, strict=True))
            assert all(0 <= token < 361 for token in row)
    with pytest.raises(SpecError, match="has no mask token that could mark a gap"):
        model.generate("Tom has 8 cups.", template="8 - <mask> = <mask>")
    with pytest.raises(SpecError, match="has id 361 at position 1, outside the vocabulary of 361"):
        model.generate("Tom has 8 cups.", template=[30, 361, None])
    with pytest.raises(SpecError, match="has no position to fill"):
        model.generate("Tom has 8 cups.", template=[30, 31])


def test_likelihoods_are_refused_for_want_of_a_mask_token(tmp_path: Path) -> None:
    model = spelling(tmp_path).language_model
    with pytest.raises(SpecError, match="no mask token, so likelihoods"):
        Likelihood(TokenProbabilities(model, Batches(1))).score([([5, 6], [7])])


@pytest.mark.parametrize("new", [5, 16, 20])
def test_serving_decodes_the_canvases_of_generate(new: int, tmp_path: Path) -> None:
    model = spelling(tmp_path)
    prompts = ["Tom has 8 cups.", "Ann has 12 cups and loses 3."]
    settings: dict[str, Any] = {"max_new_tokens": new, "sampler": "threshold", "stop_ids": []}
    alone = [model.generate(prompt, seed=[7], **settings).tokens[0] for prompt in prompts]
    served = model.serve_batch([{"prompt": prompt, "seed": 7} for prompt in prompts], **settings)
    assert {row.index: row.tokens for row in served} == dict(enumerate(alone))


@pytest.mark.parametrize(
    ("modules", "refused"),
    [
        (r".*model\.decoder\.layers.*q_proj", "decoder.layers.0.self_attn.q_proj.weight and "),
        (r".*encoder\.language_model\.layers.*mlp\.up_proj", "encoder.language_model.layers.0.mlp.up_proj.weight and"),
        (r".*language_model\.layers.*o_proj|.*decoder\.layers.*o_proj", "differently"),
        (r".*decoder\.self_conditioning\.up_proj", ""),
    ],
)
def test_an_adapter_of_shared_tensors_has_to_change_both_modules_alike(
    modules: str, refused: str, tmp_path: Path
) -> None:
    reference = published(tmp_path / "base")
    torch.manual_seed(1)
    lora = peft.LoraConfig(r=2, lora_alpha=8, target_modules=modules, init_lora_weights=False)
    peft.get_peft_model(deepcopy(reference), lora).save_pretrained(tmp_path / "adapter")
    if refused:
        with pytest.raises(ModelError, match=refused):
            load(tmp_path / "base", device="cpu", adapter=tmp_path / "adapter")
        file = tmp_path / "adapter" / "adapter_model.safetensors"
        own = "encoder.language_model" if "encoder" in refused else "decoder"
        other = "decoder" if "encoder" in refused else "encoder.language_model"
        tensors = {name: tensor for name, tensor in load_file(file).items() if f"model.{own}." in name}
        twins = {name.replace(f"model.{own}.", f"model.{other}."): tensor.clone() for name, tensor in tensors.items()}
        save_file({**tensors, **twins}, file)
        both = modules + "|" + modules.replace(own.replace(".", r"\."), other.replace(".", r"\."))
        rewrite(tmp_path / "adapter", "adapter_config.json", target_modules=both)
    load(tmp_path / "base", device="cpu", adapter=tmp_path / "adapter")


def test_the_default_sampler_is_the_published_rule(tmp_path: Path) -> None:
    """The default sampler uses the values of generation_config.json, as transformers does."""
    reference, prompt = published(tmp_path, spread=0.05), tokens(9).tolist()
    for keys in ({}, {"max_denoising_steps": 5, "t_min": 0.2, "t_max": 0.9, "confidence_threshold": 0.5}):
        bound = {"sampler_config": {"entropy_bound": 2.0, "_cls_name": "EntropyBoundSamplerConfig"}} if keys else {}
        (tmp_path / "generation_config.json").write_text(json.dumps({**keys, **bound, "pad_token_id": 0}))
        reference = DiffusionGemmaForBlockDiffusion.from_pretrained(tmp_path).eval()
        model = pardec.load(tmp_path, device="cpu")
        new = 2 * CANVAS if keys else CANVAS  # by default each canvas takes 48 steps
        with drawing(5, len(prompt)), torch.no_grad():
            expected = reference.generate(torch.tensor([prompt]), max_new_tokens=new, eos_token_id=None)
        made = model.generate(input_ids=[prompt], max_new_tokens=new, seed=[5], stop_ids=[])
        assert made.sequences[0].tolist() == expected.sequences[0].tolist()
        served = list(model.serve_batch([{"input_ids": prompt, "seed": 5}], max_new_tokens=new, stop_ids=[]))
        assert served[0].tokens == made.tokens[0]
    assert model.prepare(input_ids=[prompt]).request.temperature == 1
    assert model.prepare(input_ids=[prompt], temperature=0.5).request.temperature == 0.5
    assert model.prepare(input_ids=[prompt], sampler="threshold").request.temperature == 0


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"stability_threshold": 2}, "stability_threshold to 2 in its generation_config.json"),
        ({"t_max": "hot"}, "sets t_max to hot in its generation_config.json, and it has to be a number"),
        ({"max_denoising_steps": 0}, "max_denoising_steps to 0"),
        ({"sampler_config": {"_cls_name": "Other", "entropy_bound": 0.1}}, "only an entropy_bound of EntropyBound"),
        (
            {"sampler_config": {"entropy_bound": 0.1, "t_max": 0.9}},
            "only an entropy_bound of EntropyBoundSamplerConfig",
        ),
        ({"entropy_bound": 50.0}, "sets entropy_bound to 50.0 .* and it belongs in sampler_config"),
        ({"sampler_config": 0.1}, "sets sampler_config to 0.1"),
    ],
)
def test_a_published_rule_that_is_not_built_is_refused(keys: dict[str, Any], said: str, tmp_path: Path) -> None:
    published(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps(keys))
    model = pardec.load(tmp_path, device="cpu")
    with pytest.raises(ModelError, match=said):
        model.generate(input_ids=[[3, 4]], max_new_tokens=4)
    model.generate(input_ids=[[3, 4]], max_new_tokens=4, sampler="threshold")


@pytest.mark.parametrize("part", ["layers.1.mlp.down_proj.weight", "embed_tokens.weight", "norm.weight"])
def test_weights_of_the_encoder_are_compared_with_those_of_the_decoder(part: str, tmp_path: Path) -> None:
    published(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    own = tensors[f"model.decoder.{part}"]
    save_file(tensors | {f"model.encoder.language_model.{part}": own.clone()}, file, metadata={"format": "pt"})
    load(tmp_path, device="cpu")
    save_file(tensors | {f"model.encoder.language_model.{part}": own * 2}, file, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=rf"model\.encoder\.language_model\.{re.escape(part)} differs from"):
        load(tmp_path, device="cpu")
