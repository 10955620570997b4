"""Sumi: small folders in the published layout against plain PyTorch, what is refused, and its published decoding."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import pardec
from pardec.models.decoder_config import DecoderConfig
from pardec.models.errors import CacheError, ModelError, SpecError
from pardec.models.families import FAMILIES
from pardec.models.families.base import Unsupported
from pardec.models.kernels import attention
from pardec.models.load import load
from pardec.models.plan import Plan
from tests.models.toys import family_folder
from tests.reference import naive_uniform
from tests.reference.naive_uniform import Rule

VOCAB, CANVAS = 61, 24
BOS, EOS, PAD = 58, 59, 60
SHAPE: dict[str, Any] = {
    "architectures": ["SumiForMaskGeneration"], "model_type": "sumi", "vocab_size": VOCAB, "hidden_size": 32,
    "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 12, "hidden_act": "silu", "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"}, "tie_word_embeddings": False,
    "attention_bias": False, "add_qkv_bias": False, "mlp_bias": False, "attention_dropout": 0.0,
    "initializer_range": 0.02, "use_cache": True, "bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD,
    "auto_map": {"AutoConfig": "configuration_sumi.SumiConfig"}, "dtype": "float32", "transformers_version": "5.8.1",
}  # fmt: skip
VARIANTS: dict[str, dict[str, Any]] = {
    "as published": {},
    "biases of queries, keys and values": {"add_qkv_bias": True},
    "all biases": {"attention_bias": True, "mlp_bias": True},
    "tied": {"tie_word_embeddings": True},
    "own heads": {"num_key_value_heads": 4, "head_dim": 8},
    "by its architecture": {"model_type": "another"},
    "by its model_type": {"architectures": None},
}
BIASED = {"biases of queries, keys and values": "qkv", "all biases": (*"qkvo", "gate", "up", "down")}


def published(folder: Path, spread: float = 0.2, **changes: Any) -> dict[str, Tensor]:
    """A random checkpoint saved to `folder`; its tensors."""
    return family_folder(folder, SHAPE | changes, spread=spread)


def plain_logits(tensors: dict[str, Tensor], config: dict[str, Any], ids: Tensor) -> Tensor:
    """The logits of `ids` [B, L] by the formulas, in float64: every position sees all, and the sums have one more."""
    weights = {name: tensor.double() for name, tensor in tensors.items()}
    heads, kv, dim = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
    eps, length = config["rms_norm_eps"], ids.shape[1]

    def linear(x: Tensor, name: str) -> Tensor:
        out = x @ weights[name + ".weight"].T
        return out + weights[name + ".bias"] if name + ".bias" in weights else out

    def norm(x: Tensor, name: str) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weights[name + ".weight"]

    theta = config["rope_parameters"]["rope_theta"]
    angles = torch.arange(length)[:, None] * (1 / theta ** (torch.arange(0, dim, 2).float() / dim))  # float32, as there
    cos, sin = (torch.cat((each, each), -1).double() for each in (angles.cos(), angles.sin()))

    def rotate(x: Tensor) -> Tensor:
        return x * cos + torch.cat((-x[..., dim // 2 :], x[..., : dim // 2]), -1) * sin

    h = weights["model.embed_tokens.weight"][ids]
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        n = norm(h, at + "input_layernorm")
        q, k, v = (
            linear(n, at + f"self_attn.{part}_proj").unflatten(-1, (count, dim)).transpose(1, 2)
            for part, count in (("q", heads), ("k", kv), ("v", kv))
        )
        q, k, v = rotate(q), rotate(k).repeat_interleave(heads // kv, 1), v.repeat_interleave(heads // kv, 1)
        powers = (q @ k.transpose(2, 3) / dim**0.5).exp()
        out = powers / (1 + powers.sum(-1, keepdim=True)) @ v
        h = h + linear(out.transpose(1, 2).flatten(2), at + "self_attn.o_proj")
        n = norm(h, at + "post_attention_layernorm")
        gate = torch.nn.functional.silu(linear(n, at + "mlp.gate_proj"))
        h = h + linear(gate * linear(n, at + "mlp.up_proj"), at + "mlp.down_proj")
    h = norm(h, "model.norm")
    return h @ weights.get("lm_head.weight", weights["model.embed_tokens.weight"]).T


def tokens(*shape: int) -> Tensor:
    return torch.randint(0, VOCAB, shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_are_those_of_plain_pytorch(variant: str, dtype: str, tmp_path: Path) -> None:
    tensors, ids = published(tmp_path, **VARIANTS[variant]), tokens(2, 17)
    biased = {name.split(".")[-2].removesuffix("_proj") for name in tensors if name.endswith(".bias")}
    assert biased == set(BIASED.get(variant, ()))
    assert ("lm_head.weight" in tensors) == (variant != "tied")
    expected = plain_logits(tensors, SHAPE | VARIANTS[variant], ids)
    model = load(tmp_path, device="cpu")
    model.decoder.to(getattr(torch, dtype))  # type: ignore[attr-defined]
    assert model.family == "sumi"
    plan = Plan.full(ids, model.visible())
    atol = {"float64": 5e-6, "float32": 1e-4}[dtype]  # norms and rotary tables are in float32
    torch.testing.assert_close(model.forward(plan).logits().double(), expected, rtol=0, atol=atol)
    few = torch.tensor([[3, 16], [0, 5]])  # the last layer computes these alone
    rows = torch.arange(2)[:, None]
    narrow = model.forward(replace(plan, want=few, narrow=True)).logits().double()
    torch.testing.assert_close(narrow, expected[rows, few], rtol=0, atol=atol)


def test_the_sink_takes_a_share_of_every_sum(tmp_path: Path) -> None:
    """Without it, logits differ by much more than the comparison allows."""
    published(tmp_path)
    model, ids = load(tmp_path, device="cpu"), tokens(2, 17)
    plan = Plan.full(ids, model.visible())
    before = model.forward(plan).logits()
    for layer in model.decoder.layers:  # type: ignore[attr-defined]
        layer.config = replace(layer.config, attention_sink=False)
    assert (model.forward(plan).logits() - before).abs().max() > 0.1


def test_recorded_attention_leaves_the_share_of_the_sink_out(tmp_path: Path) -> None:
    published(tmp_path)
    model, ids = load(tmp_path, device="cpu"), tokens(1, 9)
    found = model.forward(replace(Plan.full(ids, model.visible()), attention=(0, 1))).attention
    for weights in found.values():
        assert (weights.sum(-1) < 0.99).all()
        assert (weights.sum(-1) > 0).all()


def test_a_prompt_in_the_cache_gives_the_logits_of_a_forward_over_all(tmp_path: Path) -> None:
    tensors, ids = published(tmp_path), tokens(2, 12)
    model = load(tmp_path, device="cpu")
    cache = model.new_cache(2, 12)
    model.forward(Plan.full(ids, model.visible()), cache)
    order = torch.arange(8, 12).expand(2, -1)
    lengths = torch.tensor([12, 12])
    rest = Plan(ids[:, 8:], order, order, model.visible(), lengths, order - 8, uniform=12, span=(8, 12))
    expected = plain_logits(tensors, SHAPE, ids)[:, 8:]
    torch.testing.assert_close(model.forward(rest, cache).logits().double(), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sliding_window": 6}, "unknown key sliding_window=6"),
        ({"attention_sink_bias": True}, "unknown key attention_sink_bias=True"),
        ({"qk_norm": True}, "unknown key qk_norm=True"),
        ({"hidden_act": "relu"}, "hidden_act"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "of type dynamic"),
    ],
)
def test_keys_that_are_not_known_are_refused_by_name(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match=message):
        FAMILIES["sumi"].decoder(SHAPE | changes)
    published(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(SHAPE | changes))
    with pytest.raises(ModelError, match=message):
        load(tmp_path, device="cpu")


def test_tensors_that_are_not_known_are_refused_by_name(tmp_path: Path) -> None:
    tensors = published(tmp_path)
    save_file({**tensors, "model.layers.0.self_attn.q_norm.weight": torch.ones(12)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=r"self_attn\.q_norm\.weight"):
        load(tmp_path, device="cpu")


def test_what_the_config_leaves_out_has_the_defaults_of_its_own_class() -> None:
    found = FAMILIES["sumi"].decoder({"model_type": "sumi", "hidden_size": 64, "num_attention_heads": 4})
    assert (found.vocab, found.layers, found.mlp_width, found.kv_heads, found.head_dim) == (32000, 32, 11008, 4, 16)
    assert (found.norm_eps, found.tied, found.qkv_bias, found.out_bias) == (1e-6, False, False, False)
    assert found.frequencies[1] == pytest.approx(10000 ** (-2 / 16))


def test_caches_with_readers_or_shared_slots_of_their_own_are_refused(tmp_path: Path) -> None:
    published(tmp_path)
    model = load(tmp_path, device="cpu", attention="causal")
    with pytest.raises(CacheError, match="an attention sink"):
        model.new_cache(2, 16, shared=4)
    for spec in ("sequential@streaming", "sparsekv"):
        with pytest.raises(pardec.PardecError, match="has an attention sink"):
            pardec.load(tmp_path, device="cpu", attention="causal").generate(input_ids=[[3, 4]], sampler=spec)
    with pytest.raises(ModelError, match="attention_cap=2.0 and attention_sink cannot be combined"):
        replace(model.decoder.config, attention_cap=2.0)  # type: ignore[attr-defined]
    assert isinstance(model.decoder.config, DecoderConfig)  # type: ignore[attr-defined]


def test_a_mask_id_and_likelihoods_are_refused(tmp_path: Path) -> None:
    published(tmp_path)
    with pytest.raises(pardec.ModelError, match="mask_id=3 was given, but sumi models are not masked"):
        pardec.load(tmp_path, device="cpu", mask_id=3)


# --- the published decoding: a whole canvas, with the tokens that end the answer ---


def published_generate(
    tensors: dict[str, Tensor], config: dict[str, Any], prompt: list[int], new: int, rule: Rule, seed: int
) -> list[int]:
    """The published loop over the formulas: the canvas, cut after the answer and after its first end token."""
    after = CANVAS - len(prompt) - new - 2
    row = [*prompt, *[None] * new, EOS, BOS, *[None] * after]

    def predict(ids: list[int]) -> np.ndarray:
        logits: np.ndarray = plain_logits(tensors, config, torch.tensor([ids]))[0].numpy()
        return logits

    made = naive_uniform.decode(predict, row, len(prompt), rule, seed, CANVAS).tokens[len(prompt) :][:new]
    return made[: made.index(EOS) + 1] if EOS in made else made


SAMPLERS: dict[str, tuple[dict[str, Any], Rule]] = {
    "no file": ({}, Rule("ancestral", 128, 1.0)),
    "few steps": ({"num_denoising_steps": 5, "temperature": 0.7}, Rule("ancestral", 5, 0.7)),
    "another schedule": (
        {"num_denoising_steps": 4, "schedule": "cosine", "min_log_snr": -3, "max_log_snr": 4.5},
        Rule("ancestral", 4, 1.0, "cosine", -3, 4.5),
    ),
    "adaptive": (
        {"sampler": "adaptive", "num_denoising_steps": 6, "tokens_per_step": 3},
        Rule("adaptive", 6, 1.0, tokens=3),
    ),
    "greedy": ({"sampler": "greedy", "num_denoising_steps": 3}, Rule("adaptive", 3, 0.0, tokens=CANVAS)),
}


@pytest.mark.seeds("arXiv:2606.19005")
@pytest.mark.parametrize("in_c", [True, False], ids=["in C", "defined"])
@pytest.mark.parametrize("case", SAMPLERS)
@pytest.mark.covers(1)
def test_the_default_sampler_is_the_published_loop(
    case: str, in_c: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not in_c:
        monkeypatch.setattr(attention, "kernel", lambda: None)
    keys, rule = SAMPLERS[case]
    changes = {"add_qkv_bias": case == "few steps"}
    tensors = published(tmp_path, **changes)
    (tmp_path / "generation_config.json").write_text(json.dumps({"canvas_length": CANVAS, "eos_token_id": EOS, **keys}))
    model, prompts = pardec.load(tmp_path, device="cpu"), [[3, 4, 5], [6, 7, 8, 9, 10, 11]][: 1 + bool(keys)]
    together = model.generate(input_ids=prompts, max_new_tokens=9, seed=[5, 6][: len(prompts)])
    served = model.serve_batch(
        [{"input_ids": prompt, "seed": 5 + row} for row, prompt in enumerate(prompts)], max_new_tokens=9
    )
    by_index = {row.index: row.tokens for row in served}
    for row, prompt in enumerate(prompts):
        expected = published_generate(tensors, SHAPE | changes, prompt, 9, rule, 5 + row)
        alone = model.generate(input_ids=[prompt], max_new_tokens=9, seed=[5 + row])
        assert alone.tokens[0] == together.tokens[row] == by_index[row] == expected
        assert alone.nfe[0] == rule.steps
        whole = alone.sequences[0].tolist()
        assert len(whole) == CANVAS
        assert whole[len(prompt) + 9 : len(prompt) + 11] == [EOS, BOS]


def test_answers_end_at_their_first_end_token(tmp_path: Path) -> None:
    """Over many seeds some answers have an end token within, and none is longer than what was asked."""
    published(tmp_path)
    model = pardec.load(tmp_path, device="cpu", block=CANVAS)
    made = model.generate(input_ids=[[3, 4]] * 60, max_new_tokens=8, seed=1, sampler="ancestral:steps=2", temperature=1)
    lengths = [len(row) for row in made.tokens]
    assert max(lengths) == 8
    assert min(lengths) < 8
    assert all(row.count(EOS) == (len(row) < 8 or row[-1] == EOS) for row in made.tokens)
    assert made.settings["max_new_tokens"] == 8


def test_a_template_is_the_whole_canvas(tmp_path: Path) -> None:
    published(tmp_path)
    model = pardec.load(tmp_path, device="cpu")
    made = model.generate(input_ids=[[3, 4]], template=[None, 7, None, 9], seed=1)
    assert made.sequences.shape == (1, 6)
    assert [made.tokens[0][1], made.tokens[0][3]] == [7, 9]


def test_the_canvas_is_as_long_as_the_files_or_the_caller_say(tmp_path: Path) -> None:
    published(tmp_path)
    model = load(tmp_path, device="cpu")
    assert model.decoding_config.block == 128  # 2,048, and the model is made for fewer
    assert model.decoding_config.anchors == (EOS, BOS)
    (tmp_path / "generation_config.json").write_text(json.dumps({"canvas_length": 30, "anchor_eosbos": False}))
    model = load(tmp_path, device="cpu")
    assert (model.decoding_config.block, model.decoding_config.anchors) == (30, ())
    assert load(tmp_path, device="cpu", block=20).decoding_config.block == 20


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"sampler": "beam"}, "sampler to beam in its generation_config.json, and it has to be 'ancestral', '"),
        ({"num_denoising_steps": 0}, "num_denoising_steps to 0"),
        ({"schedule": "square"}, "schedule to square"),
        ({"min_log_snr": 3, "max_log_snr": 2}, "max_log_snr to 2"),
        ({"temperature": -1}, "temperature to -1"),
        ({"trim_at_eos": False}, "trim_at_eos to False"),
        ({"denoise_end": [4]}, r"denoise_end to \[4\]"),
        ({"frozen": [[3, 4]]}, r"frozen to \[\[3, 4\]\]"),
    ],
)
def test_published_settings_that_are_not_built_are_refused(keys: dict[str, Any], said: str, tmp_path: Path) -> None:
    published(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps(keys))
    model = pardec.load(tmp_path, device="cpu")
    with pytest.raises(ModelError, match=said):
        model.generate(input_ids=[[3, 4]], max_new_tokens=4)
    model.generate(input_ids=[[3, 4]], max_new_tokens=4, sampler="ancestral:steps=1")


def test_anchors_are_turned_off_by_false_alone(tmp_path: Path) -> None:
    published(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"anchor_eosbos": "false"}))
    with pytest.raises(ModelError, match="anchor_eosbos is 'false', and true or false is needed"):
        load(tmp_path, device="cpu")


def test_what_does_not_fit_into_a_canvas_is_refused(tmp_path: Path) -> None:
    published(tmp_path)
    model = pardec.load(tmp_path, device="cpu", block=16)
    with pytest.raises(SpecError, match="row 1 needs 17 positions with the tokens that end it, and a"):
        model.generate(input_ids=[[3, 4], [3, 4, 5]], max_new_tokens=12)
    for key, value in (("eos_token_id", None), ("bos_token_id", VOCAB)):
        (tmp_path / "config.json").write_text(json.dumps(SHAPE | {key: value}))
        with pytest.raises(ModelError, match=f"has {key}="):
            pardec.load(tmp_path, device="cpu")
    (tmp_path / "config.json").write_text(json.dumps(SHAPE))
    (tmp_path / "generation_config.json").write_text(json.dumps({"canvas_length": 0}))
    with pytest.raises(ModelError, match="canvas_length.*0"):
        pardec.load(tmp_path, device="cpu")


def test_methods_that_need_a_mask_token_are_refused(tmp_path: Path) -> None:
    published(tmp_path)
    model = pardec.load(tmp_path, device="cpu", block=24)
    with pytest.raises(SpecError, match="cfg=1.5 needs the model without its prompt, whose tokens become masks"):
        model.generate(input_ids=[[3, 4]], max_new_tokens=4, cfg=1.5)
    for spec in ("wino", "interpolate+threshold+edit:tau=0.0", "provisional+threshold"):
        with pytest.raises(SpecError, match="has no mask token"):
            model.generate(input_ids=[[3, 4]], max_new_tokens=4, sampler=spec)
    with pytest.raises(SpecError, match="may leave a random token anywhere, and allowed"):
        model.generate(input_ids=[[3, 4]], max_new_tokens=4, allowed=[[5, 6]] + [None] * 3)
    made = model.generate(input_ids=[[3, 4]], max_new_tokens=4, sampler="threshold")  # others run, with masks as noise
    assert len(made.tokens[0]) <= 4
