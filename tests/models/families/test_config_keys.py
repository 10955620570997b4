"""Every known key of a config.json, alone and with others: transformers' logits of the folder, or a refusal by name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    ChameleonForConditionalGeneration,
    DynamicCache,
    Emu3ForConditionalGeneration,
)
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.diffusion_gemma import DiffusionGemmaForBlockDiffusion

from pardec.models.errors import CapacityError, ModelError, PardecError
from pardec.models.families import FAMILIES, llama_like
from pardec.models.load import load
from pardec.models.plan import Plan
from tests.models import chameleon_files
from tests.models.emu3_files import write_library
from tests.models.families.test_diffusion_gemma import published as diffusion_gemma
from tests.models.families.test_families import CAUSAL, EXPERTS, LLAMA3, published
from tests.models.toys import rewrite

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
LONG = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * 6, "long_factor": [2.0] * 6}
ABSENT = "absent"  # in a change: the key is taken out
IDS = torch.randint(4, 24, (2, 30), generator=torch.Generator().manual_seed(1))
ROUNDING = 1e-4  # of the largest logit: what two implementations may differ by

# Values that each key is given; those that change nothing for one class do for another.
VALUES: dict[str, list[Any]] = {
    # the mask
    "is_causal": [False, True],
    "use_bidirectional_attention": [True, False],
    "sliding_window": [6, 1, 0, None],
    "use_sliding_window": [True, False],
    "max_window_layers": [1],
    "layer_types": [[SLIDES] * 2, [SEES] * 2, [SEES, SLIDES], [SLIDES], ["chunked_attention"] * 2],
    "sliding_window_pattern": [1, 2],
    "attention_chunk_size": [4],
    "per_layer_config": [{"0": {"sliding_window": 3}}, {"1": {"rms_norm_eps": 0.5}}],
    # positions
    "rope_theta": [300.0, "300"],
    "rope_local_base_freq": [300.0],
    "rope_scaling": [
        {"type": "linear", "factor": 2.0},
        {"rope_type": "default"},
        {"mrope_section": [2, 2, 2]},
        {"factor": 2.0},
        {"type": "yarn", "factor": 4.0},
        {"type": "linear", "rope_type": "yarn", "factor": 4.0},
        LLAMA3 | {"original_max_position_embeddings": 16},
        {},
    ],
    "rope_parameters": [
        LINEAR,
        YARN,
        LINEAR | {"partial_rotary_factor": 0.5},
        {"rope_type": "default", "rope_theta": 300.0, "partial_rotary_factor": 0.5},
        {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0},
        {"rope_type": "linear", "factor": 2.0},
        {"rope_theta": 300.0},
        YARN | {"attention_factor": 0.7},
        YARN | {"mscale": 0.7, "mscale_all_dim": 0.3},
        YARN | {"beta_fast": 4, "beta_slow": 2, "truncate": False},
        LONG | {"original_max_position_embeddings": 16},
        {"rope_type": "proportional", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
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
    "hidden_act": ["gelu", "relu", "silu", "swish", "gelu_pytorch_tanh", "gelu_new", "quick_gelu"],
    "hidden_activation": ["gelu", "relu", "silu", "gelu_new", None],
    "attention_bias": [True, False],
    "mlp_bias": [True],
    "qk_norm": [True],
    "use_qk_norm": [True],
    "head_dim": [24, None],
    "num_key_value_heads": [4, 1],
    "num_global_key_value_heads": [2],
    "rms_norm_eps": [0.5, 1, "1e-5"],
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
    "dtype": ["float16"],
    "architectures": [["LlamaModel"], [], None],
    "attn_implementation": ["eager"],
    "quantization_config": [None, {}, {"quant_method": "gptq", "bits": 4, "group_size": 128}],
    "canvas_length": [4],
    "attention_k_eq_v": [False],
}
# Keys that meet: which one wins differs by class.
TOGETHER: list[dict[str, Any]] = [
    {"rope_theta": 300.0, "rope_parameters": LINEAR},
    {"rope_theta": 300.0, "rope_parameters": {"rope_type": "linear", "factor": 2.0}},
    {
        "rope_scaling": {"rope_type": "linear", "factor": 2.0},
        "rope_parameters": {"rope_type": "default", "rope_theta": 300.0},
    },
    {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}, "max_position_embeddings": 32},
    {"rope_parameters": YARN, "original_max_position_embeddings": 8},
    {"rope_local_base_freq": 300.0, "rope_theta": 500.0, "rope_parameters": ABSENT},
    {"partial_rotary_factor": 0.5, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    {"partial_rotary_factor": 0.5, "rope_parameters": YARN},
    {"partial_rotary_factor": 0.5, "rope_parameters": {"rope_type": "default", "rope_theta": 300.0}},
    {"partial_rotary_factor": 0.5, "rope_parameters": LINEAR | {"partial_rotary_factor": 1.0}},
    {"layer_types": [SLIDES, SEES], "sliding_window": 6},
    {"layer_types": [SLIDES, SEES], "sliding_window": None},
    {"layer_types": [SLIDES] * 2, "sliding_window": 6, "use_sliding_window": False},
    {"layer_types": ABSENT, "sliding_window": 6},
    {"layer_types": ABSENT, "sliding_window": 6, "sliding_window_pattern": 1},
    {"layer_types": ABSENT, "sliding_window": 6, "use_sliding_window": True},
    {"layer_types": ABSENT, "sliding_window": 6, "use_sliding_window": True, "max_window_layers": 0},
    {"layer_types": ABSENT, "sliding_window": 6, "use_sliding_window": True, "max_window_layers": 1},
    {"layer_types": ABSENT, "sliding_window": 6, "use_sliding_window": False, "max_window_layers": 0},
    {"layer_types": ABSENT, "sliding_window": None, "use_sliding_window": True, "max_window_layers": 0},
    {"layer_types": None, "sliding_window": 6},
    {"is_causal": False, "sliding_window": 6},
    {"is_causal": False, "attn_implementation": "eager"},
    {"use_bidirectional_attention": True, "sliding_window": 6},
    {"hidden_act": "relu", "hidden_activation": "gelu_pytorch_tanh"},
    {"hidden_act": "relu", "hidden_activation": None},
    {"hidden_act": "relu", "hidden_activation": ABSENT},
    {"head_dim": ABSENT, "num_attention_heads": 2, "num_key_value_heads": 1},
    {"attention_bias": True, "mlp_bias": True},
    {"attn_logit_softcapping": 2.0, "attn_implementation": "sdpa"},
    {"attn_logit_softcapping": 2.0, "attn_implementation": "eager"},
    {"tie_word_embeddings": True, "logit_scale": 0.3},
    {"torch_dtype": "float16", "dtype": "bfloat16"},
]
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


def reference(family: str, folder: Path) -> Any | None:
    """The model of transformers; None if it lacks tensors or leaves some out."""
    kinds: dict[str, Any] = {"emu3": Emu3ForConditionalGeneration, "diffusion_gemma": DiffusionGemmaForBlockDiffusion}
    kinds |= dict.fromkeys(("chameleon", "chameleon-large"), ChameleonForConditionalGeneration)
    loader = kinds.get(family, AutoModelForCausalLM)
    model, info = loader.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    fits = not any(info[key] for key in ("missing_keys", "mismatched_keys", "unexpected_keys"))
    return model.eval() if fits else None


@torch.no_grad()
def logits_of(family: str, model: Any, ids: Tensor) -> Tensor:
    """Logits of transformers, or of its head alone if its own forward excludes tokens."""
    if family == "diffusion_gemma":
        return model(input_ids=ids[:, :11], decoder_input_ids=ids[:, 11:19]).logits
    if family.startswith("chameleon"):
        return chameleon_files.logits(model, ids)
    return model(input_ids=ids).logits


@torch.no_grad()
def cached_logits(model: Any, ids: Tensor) -> Tensor:
    """The same with the KV cache that the config asks for: of twenty tokens, then of one at a time."""
    cache, parts = DynamicCache(config=model.config), (ids[:, :20], *ids[:, 20:].split(1, -1))
    return torch.cat([model(input_ids=part, past_key_values=cache).logits for part in parts], 1)


def changes(config: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What is tried of a config: each key with each value, keys that meet, and each of its own keys taken out.

    Without text_config the classes of transformers make a model of their defaults, of billions of parameters.
    """
    yield from ({key: value} for key, values in VALUES.items() for value in values)
    yield from TOGETHER
    yield from ({key: ABSENT} for key in config if key not in ("model_type", "text_config"))


def changed(config: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """The config after a change."""
    after = config | {key: value for key, value in change.items() if value != ABSENT}
    return {key: value for key, value in after.items() if change.get(key) != ABSENT}


def found(family: str, folder: Path, ids: Tensor) -> Tensor:
    model = load(folder, device="cpu", dtype="float32")
    if family != "diffusion_gemma":
        return model.forward(Plan.full(ids, model.visible())).logits()
    length, order = 19, torch.arange(19).expand(len(ids), -1)
    visible = model.visible(torch.zeros(len(ids), length, dtype=torch.bool), torch.full((len(ids),), 11))
    lengths = torch.full((len(ids),), length)
    both = Plan(ids[:, :length], order, order, visible, lengths, order[:, 11:], uniform=length, span=(0, length))
    return model.forward(both).logits()


def problem(family: str, folder: Path, *keys: str) -> str:
    """The fault in how pardec loads a folder, of whose config `keys` were changed."""
    logits, refused = None, ""
    try:
        logits = found(family, folder, IDS)
    except CapacityError:
        return ""  # it runs through transformers, up to a length that it names
    except PardecError as error:
        if any(key in f"{error} {error.hint}" for key in keys):
            return ""
        refused = f"refused without naming {' or '.join(keys)}: {error}"
    try:
        model = reference(family, folder)
        wanted = None if model is None else logits_of(family, model, IDS)
    except Exception:  # it fails in many ways, and what it cannot run is compared with nothing
        wanted = None
    if wanted is None or logits is None:
        return "" if wanted is None else refused
    gap = (logits - wanted).abs().max() / wanted.abs().max()
    return "" if gap < ROUNDING else f"logits differ by {gap:.2g}"


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
    """By default each change is tested with one of the families."""
    build(family, tmp_path)
    file, wrong = tmp_path / "config.json", {}
    whole = json.loads(file.read_text())
    assert not problem(family, tmp_path)
    for inside in (False, True) if family in NESTED else (False,):
        part = whole["text_config"] if inside else whole
        for number, change in enumerate(changes(part), list(transformers_families()).index(family)):
            if every or number % len(CLASSES) == 0:
                after = changed(part, change)
                file.write_text(json.dumps(whole | {"text_config": after} if inside else after))
                if text := problem(family, tmp_path, *change):
                    wrong[f"{change}{' in text_config' * inside}"] = text
    assert not wrong


@pytest.mark.parametrize(
    ("family", "key"),
    [
        *((family, "sliding_window") for family in ("llama", "gemma")),
        *((family, "attention_chunk_size") for family in ("llama", "gemma", "phi3", "qwen3_moe", "mistral")),
    ],
)
def test_a_window_that_only_the_cache_of_transformers_follows_limits_the_text(
    family: str, key: str, tmp_path: Path
) -> None:
    """Up to its length all readings agree; past it, one forward of transformers and its decoding do not."""
    build(family, tmp_path)
    rewrite(tmp_path, **{"sliding_window": None, key: 6})
    model = reference(family, tmp_path)
    whole, cached = logits_of(family, model, IDS), cached_logits(model, IDS)
    assert (cached[:, 20:] - whole[:, 20:]).abs().max() > 0.1
    torch.testing.assert_close(found(family, tmp_path, IDS[:, :6]), whole[:, :6], rtol=1e-4, atol=1e-4)
    with pytest.raises(CapacityError, match="up to 6 positions"):
        found(family, tmp_path, IDS)


@pytest.mark.parametrize(
    ("family", "change", "message"),
    [
        ("qwen2", {"layer_types": ["chunked_attention"] * 2}, "no KV cache for its config.json.*attention_chunk_size"),
        ("llama", {"sliding_window": 0}, "sliding_window is 0 in its config.json"),
        ("llama", {"sliding_window": 1}, "sliding_window is 1 in its config.json"),
    ],
)
def test_a_cache_that_holds_nothing_or_cannot_be_made_is_refused(
    family: str, change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    build(family, tmp_path)
    rewrite(tmp_path, **change)
    with pytest.raises(ModelError, match=message):
        load(tmp_path, device="cpu")


def test_a_base_that_rope_scaling_would_replace_is_refused(tmp_path: Path) -> None:
    """Model cards ask for rope_scaling. In a config of transformers 5 it takes the base; in one of 4 the base stays."""
    build("qwen3", tmp_path)
    file = tmp_path / "config.json"
    whole = json.loads(file.read_text())
    yarn, base = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}, {"rope_theta": 300.0}
    file.write_text(json.dumps(whole | {"rope_parameters": {"rope_type": "default"} | base, "rope_scaling": yarn}))
    with pytest.raises(ModelError, match="rope_scaling and rope_parameters.*rope_theta=300.0") as refusal:
        load(tmp_path, device="cpu")
    assert "move the keys of rope_scaling into rope_parameters" in str(refusal.value.hint)
    file.write_text(json.dumps(whole | {"rope_parameters": yarn | base}))
    moved = found("qwen3", tmp_path, IDS)
    file.write_text(json.dumps(changed(whole, {"rope_parameters": ABSENT}) | base | {"rope_scaling": yarn}))
    torch.testing.assert_close(found("qwen3", tmp_path, IDS), moved)
    assert not problem("qwen3", tmp_path)


@pytest.mark.parametrize("family", transformers_families())
def test_config_keys_of_the_class_in_transformers_are_all_tried(family: str) -> None:
    kind = {"gemma3": "gemma3_text", "chameleon-large": "chameleon"}.get(family, family)
    own = {field.name for field in fields(CONFIG_MAPPING[kind])}  # type: ignore[arg-type]
    common = {field.name for field in fields(CONFIG_MAPPING["bert"])} & {
        field.name for field in fields(CONFIG_MAPPING["llama"])
    }
    assert own - common - set(VALUES) - STRUCTURE - NO_LOGITS == set()


@pytest.mark.parametrize("family", sorted({case.split()[0].rstrip(",") for case in CAUSAL}))
def test_config_keys_of_a_causal_family_are_tried_and_its_windows_followed_or_refused(family: str) -> None:
    assert family in CLASSES, "each family of CAUSAL in test_families.py has a class and a config in CLASSES"
    keys = FAMILIES[family].keys
    assert "sliding_window" in keys.followed | set(keys.refused), "a class without windows has **NO_WINDOWS"


@pytest.mark.parametrize("family", FAMILIES)
def test_config_keys_that_a_family_follows_are_tried_or_its_own(family: str) -> None:
    keys = FAMILIES[family].keys
    assert not keys.followed & set(keys.refused)
    if family in transformers_families():
        assert keys.followed - set(VALUES) - STRUCTURE - NO_LOGITS == set()


STATED = {
    "vocab_size": 40, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 24, "hidden_act": "silu", "rms_norm_eps": 1e-5,
    "max_position_embeddings": 512, "rope_theta": 5000.0, "tie_word_embeddings": True,
}  # fmt: skip
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
