"""Every known key of a config.json, one at a time: transformers' logits from the same folder, or a refusal by name."""

from __future__ import annotations

import json
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, ChameleonForConditionalGeneration, Emu3ForConditionalGeneration
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.diffusion_gemma import DiffusionGemmaForBlockDiffusion

from pardec.models.errors import CapacityError, ModelError, PardecError
from pardec.models.families import FAMILIES, llama_like
from pardec.models.families.base import ConfigKeys
from pardec.models.load import load
from pardec.models.plan import Plan
from tests.models import chameleon_files
from tests.models.emu3_files import write_library
from tests.models.families.test_diffusion_gemma import published as diffusion_gemma
from tests.models.families.test_families import EXPERTS, published

GROUPED = {"num_key_value_heads": 2}
GEMMA = GROUPED | {"head_dim": 16, "sliding_window": 9, "query_pre_attn_scalar": 24, "pad_token_id": 0}
CLASSES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", GROUPED),
    "qwen2": ("Qwen2", GROUPED),
    "qwen3": ("Qwen3", GROUPED | {"head_dim": 16}),
    "qwen3_moe": ("Qwen3Moe", EXPERTS),
    "mistral": ("Mistral", GROUPED | {"sliding_window": 9}),
    "phi3": ("Phi3", GROUPED | {"pad_token_id": 0}),
    "gemma": ("Gemma", GROUPED | {"head_dim": 16, "pad_token_id": 0}),
    "gemma2": ("Gemma2", GEMMA),
    "gemma3": ("Gemma3Text", GEMMA | {"layer_types": ["sliding_attention", "full_attention"]}),
}
NESTED = ("emu3", "diffusion_gemma")  # whose transformer has a config of its own in the config
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16}
SLIDES, SEES = "sliding_attention", "full_attention"

# Values that each key is given; those that change nothing for one class do for another.
VALUES: dict[str, list[Any]] = {
    # the mask
    "is_causal": [False, True],
    "use_bidirectional_attention": [True, False],
    "sliding_window": [6, None],
    "use_sliding_window": [True, False],
    "max_window_layers": [1],
    "layer_types": [[SLIDES] * 2, [SEES] * 2, [SEES, SLIDES]],
    "sliding_window_pattern": [1, 2],
    "attention_chunk_size": [4],
    "per_layer_config": [{"0": {"sliding_window": 3}}, {"1": {"rms_norm_eps": 0.5}}],
    # positions
    "rope_theta": [300.0],
    "rope_local_base_freq": [300.0],
    "rope_scaling": [{"type": "linear", "factor": 2.0}, {"rope_type": "default"}, {"mrope_section": [2, 2, 2]}],
    "rope_parameters": [
        LINEAR,
        YARN,
        LINEAR | {"partial_rotary_factor": 0.5},
        {"rope_type": "default", "rope_theta": 300.0, "partial_rotary_factor": 0.5},
        {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0},
        {SLIDES: {"rope_type": "default", "rope_theta": 300.0}, SEES: LINEAR},
    ],
    "partial_rotary_factor": [0.5, 1.0],
    "original_max_position_embeddings": [8],
    "max_position_embeddings": [16],
    "rotary_dim": [4],
    "rope_interleave": [True],
    "no_rope_layers": [[0, 0]],
    "global_head_dim": [8],
    # sizes and parts of a layer
    "hidden_act": ["gelu", "relu", "silu"],
    "hidden_activation": ["gelu", "relu", "silu"],
    "attention_bias": [True, False],
    "mlp_bias": [True],
    "qk_norm": [True],
    "use_qk_norm": [True],
    "head_dim": [24, None],
    "num_key_value_heads": [4, 1],
    "num_global_key_value_heads": [2],
    "rms_norm_eps": [0.5],
    "norm_eps": [0.5],
    "layer_norm_eps": [0.5],
    "clip_qkv": [0.1],
    "swin_norm": [True],
    "model_parallel_size": [2],
    "num_hidden_layers": [1],
    "tie_word_embeddings": [True, False],
    # experts
    "num_experts": [3],
    "num_local_experts": [3, 6],
    "num_experts_per_tok": [1],
    "top_k_experts": [1],
    "norm_topk_prob": [False],
    "decoder_sparse_step": [2],
    "mlp_only_layers": [[1]],
    "output_router_logits": [True],
    "router_aux_loss_coef": [0.5],
    "routed_scaling_factor": [2.5],
    # scales and caps
    "query_pre_attn_scalar": [3],
    "attn_logit_softcapping": [2.0, None],
    "final_logit_softcapping": [2.0, None],
    **{key: [0.3] for key in ("logit_scale", "logits_scaling", "embedding_multiplier", "residual_multiplier")},
    **{key: [0.3] for key in ("attention_multiplier", "scale_emb", "scale_depth", "attn_scale", "rope_interleaved")},
    "attn_temperature_tuning": [True],
    # of training, of decoding, of files
    **{key: [0.5] for key in ("attention_dropout", "resid_pdrop", "embd_pdrop", "hidden_dropout", "dropout")},
    "initializer_range": [0.5],
    "pretraining_tp": [2],
    "chunk_size_feed_forward": [2],
    "use_cache": [False],
    **{key: [3, None] for key in ("pad_token_id", "bos_token_id", "eos_token_id")},
    "torch_dtype": ["float16"],
    "canvas_length": [4],
    "attention_k_eq_v": [False],
}
STRUCTURE = {"vocab_size", "hidden_size", "intermediate_size", "moe_intermediate_size", "num_attention_heads"}
NO_LOGITS = {"text_config", "vision_config", "vq_config", "vocabulary_map", "model_type", "boi_token_id"} | {
    "eoi_token_id",
    "image_token_id",
}


def build(family: str, folder: Path) -> None:
    """A small random checkpoint of the family, as transformers saves it."""
    if family == "emu3":
        write_library(folder)
    elif family == "diffusion_gemma":
        diffusion_gemma(folder)
    elif family.startswith("chameleon"):
        chameleon_files.library_model(behind=family.endswith("large")).save_pretrained(folder)
    else:
        kind, changes = CLASSES[family]
        published(kind, folder, **changes)


def expected(family: str, folder: Path, ids: Tensor) -> Tensor | None:
    """Logits of transformers, or of its head alone if its own forward excludes tokens; None for tensors it made up."""
    kinds: dict[str, Any] = {"emu3": Emu3ForConditionalGeneration, "diffusion_gemma": DiffusionGemmaForBlockDiffusion}
    kinds |= dict.fromkeys(("chameleon", "chameleon-large"), ChameleonForConditionalGeneration)
    loader = kinds.get(family, AutoModelForCausalLM)
    model, info = loader.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    if any(info[key] for key in ("missing_keys", "mismatched_keys", "unexpected_keys")):
        return None
    with torch.no_grad():
        if family == "diffusion_gemma":
            return model.eval()(input_ids=ids[:, :11], decoder_input_ids=ids[:, 11:19]).logits
        if family.startswith("chameleon"):
            return chameleon_files.logits(model.eval(), ids)
        return model.eval()(input_ids=ids).logits


def found(family: str, folder: Path, ids: Tensor) -> Tensor:
    model = load(folder, device="cpu", dtype="float32")
    if family != "diffusion_gemma":
        return model.forward(Plan.full(ids, model.visible())).logits()
    length, order = 19, torch.arange(19).expand(len(ids), -1)
    visible = model.visible(torch.zeros(len(ids), length, dtype=torch.bool), torch.full((len(ids),), 11))
    lengths = torch.full((len(ids),), length)
    both = Plan(ids[:, :length], order, order, visible, lengths, order[:, 11:], uniform=length, span=(0, length))
    return model.forward(both).logits()


def problem(family: str, folder: Path, key: str) -> str:
    """The fault in how pardec loads a folder; empty if transformers cannot load it either."""
    ids = torch.randint(4, 24, (2, 30), generator=torch.Generator().manual_seed(1))
    try:
        wanted = expected(family, folder, ids)
    except Exception:  # it fails in many ways, and what it cannot run is compared with nothing
        return ""
    if wanted is None:
        return ""
    try:
        gap = (found(family, folder, ids) - wanted).abs().max() / wanted.abs().max()
    except CapacityError:
        return ""  # it runs through transformers, up to a length that it names
    except PardecError as error:
        return "" if key in f"{error} {error.hint}" else f"refused without naming {key}: {error}"
    return "" if gap < 1e-4 else f"logits differ by {gap:.2g}"


@cache
def transformers_families() -> tuple[str, ...]:
    return (*CLASSES, "chameleon", "chameleon-large", *NESTED)


@pytest.mark.parametrize(
    ("family", "every"),
    [
        *((name, False) for name in CLASSES),
        *(pytest.param(name, True, marks=pytest.mark.slow) for name in transformers_families()),
    ],
)
def test_config_keys_give_the_logits_of_transformers_or_are_refused_by_name(
    family: str, every: bool, tmp_path: Path
) -> None:
    """By default each key is tested with one of the families."""
    build(family, tmp_path)
    file, wrong = tmp_path / "config.json", {}
    whole = json.loads(file.read_text())
    assert not problem(family, tmp_path, "")
    for inside in (False, True) if family in NESTED else (False,):
        for number, (key, values) in enumerate(VALUES.items(), list(transformers_families()).index(family)):
            for value in values if every or number % len(CLASSES) == 0 else ():
                changed = json.loads(json.dumps(whole))
                (changed["text_config"] if inside else changed)[key] = value
                file.write_text(json.dumps(changed))
                if text := problem(family, tmp_path, key):
                    wrong[f"{key}={value!r}{' in text_config' * inside}"] = text
    assert not wrong


@pytest.mark.parametrize("family", transformers_families())
def test_config_keys_of_the_class_in_transformers_are_all_tried(family: str) -> None:
    kind = {"gemma3": "gemma3_text", "chameleon-large": "chameleon"}.get(family, family)
    own = {field.name for field in fields(CONFIG_MAPPING[kind])}  # type: ignore[arg-type]
    common = {field.name for field in fields(CONFIG_MAPPING["bert"])} & {
        field.name for field in fields(CONFIG_MAPPING["llama"])
    }
    assert own - common - set(VALUES) - STRUCTURE - NO_LOGITS == set()


@pytest.mark.parametrize("family", FAMILIES)
def test_config_keys_that_a_family_follows_are_tried_or_its_own(family: str) -> None:
    keys = FAMILIES[family].keys
    assert isinstance(keys, ConfigKeys)
    assert not keys.followed & set(keys.refused)
    if family in transformers_families():
        assert keys.followed - set(VALUES) - STRUCTURE - NO_LOGITS == set()


STATED = {
    "vocab_size": 40,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 512,
    "rope_theta": 5000.0,
    "tie_word_embeddings": True,
}
CHANGES: list[dict[str, Any]] = [
    {},
    {"head_dim": None},
    {"rope_theta": 7},
    {"rope_theta": None},
    {"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 300.0}},
    {"rope_parameters": {"rope_type": "default", "rope_theta": 300.0}},
    {"rope_parameters": {"rope_type": "linear", "rope_theta": 300.0, "factor": 2.0}},
    {"rope_parameters": {"rope_type": "default", "rope_theta": 300.0, "partial_rotary_factor": 0.5}},
    {"rope_scaling": {"type": "linear", "factor": 4.0}},
    {"rope_scaling": None},
    {"partial_rotary_factor": 0.5},
    {"attention_bias": True},
    {"attention_bias": None},
    {"mlp_bias": True},
    {"hidden_act": "gelu"},
    {"hidden_act": "relu"},
    {"tie_word_embeddings": False},
    {"sliding_window": 16},
    {"sliding_window": 16, "use_sliding_window": False, "max_window_layers": 2},
    {"sliding_window": 16, "use_sliding_window": True, "max_window_layers": 2},
    {"sliding_window": None, "use_sliding_window": True},
    {"layer_types": ["full_attention"] * 3},
    {"layer_types": None},
    {"hidden_size": 65},
    {"num_key_value_heads": None},
    {"rms_norm_eps": 1},
    {"vocab_size": 40.0},
    {"tie_word_embeddings": None},
    *({key: "absent"} for key in STATED),
]


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_a_config_that_states_everything_is_read_as_its_class_reads_it(kind, monkeypatch):
    """A config that is complete as it is asks no class of transformers; the shape is the one that the class gives."""

    def shape(config):
        try:
            return llama_like.shape(config, kind, qk_norm=kind == "qwen3")
        except ModelError as error:
            return str(error)

    own = []
    for change in CHANGES:
        config = {key: value for key, value in {**STATED, **change}.items() if value != "absent"}
        own.append(llama_like._complete_as_it_is(config, kind) is not None)
        found = shape(config)
        with monkeypatch.context() as asked:
            asked.setattr(llama_like, "_complete_as_it_is", lambda config, kind: None)
            assert found == shape(config), change
    assert own[0]
    assert 8 <= sum(own) <= 14
