"""Every family compared with an independent implementation: transformers, or recorded logits."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import pardec
from pardec.models.errors import CapacityError, ModelError
from pardec.models.families import FAMILIES, match
from pardec.models.families.base import FamilySpec, Unsupported, register
from pardec.models.load import load
from pardec.models.plan import Plan, Visible
from tests.models.toys import ROOT, SMALL, library_model, rewrite

GOLDEN = Path(__file__).parents[2] / "golden"
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
EXPERTS = {
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_experts": 6,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "norm_topk_prob": True,
}
LEFT_OUT = "left out"  # in a change of a config
FAMILY_OF = {"gemma3_text": "gemma3"}  # by model_type; elsewhere it is the name of the family
# Each case begins with the name of its family, by which scripts/test --quick finds it.
CAUSAL: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"num_key_value_heads": 2}),
    "llama with every bias, tied": (
        "Llama",
        {"num_key_value_heads": 1, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    ),
    "llama with its own head size": ("Llama", {"num_key_value_heads": 4, "head_dim": 20}),
    "llama with a GELU gate": ("Llama", {"hidden_act": "gelu"}),
    "llama with llama3 scaling": (
        "Llama",
        {"rope_parameters": {**LLAMA3, "rope_theta": 500000.0, "original_max_position_embeddings": 16}},
    ),
    "llama with linear scaling": (
        "Llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
    ),
    "qwen2 with yarn scaling": (
        "Qwen2",
        {
            "num_key_value_heads": 2,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 16,
            },
        },
    ),
    "qwen2": ("Qwen2", {"num_key_value_heads": 2}),
    "qwen2 tied": ("Qwen2", {"num_key_value_heads": 4, "tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {"num_key_value_heads": 2, "head_dim": 20}),
    "qwen2 with some sliding layers": (
        "Qwen2",
        {"num_key_value_heads": 2, "use_sliding_window": True, "sliding_window": 12, "max_window_layers": 1},
    ),
    "mistral": ("Mistral", {"num_key_value_heads": 2, "sliding_window": None, "head_dim": 20}),
    "mistral that slides": ("Mistral", {"num_key_value_heads": 2, "sliding_window": 7}),
    "phi3": ("Phi3", {"num_key_value_heads": 2, "pad_token_id": 0}),
    "phi3 that slides, rotated in part": (
        "Phi3",
        {
            "pad_token_id": 0,
            "sliding_window": 9,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
        },
    ),
    "gemma": ("Gemma", {"num_key_value_heads": 1, "head_dim": 20, "pad_token_id": 0}),
    "gemma, untied": (
        "Gemma",
        {"num_key_value_heads": 4, "head_dim": 20, "pad_token_id": 0, "tie_word_embeddings": False},
    ),
    "gemma, grouped, with biases": (
        "Gemma",
        {"num_key_value_heads": 2, "head_dim": 20, "pad_token_id": 0, "attention_bias": True},
    ),
    "gemma2": (
        "Gemma2",
        {"num_key_value_heads": 1, "head_dim": 20, "sliding_window": 9, "query_pre_attn_scalar": 24, "pad_token_id": 0},
    ),
    "gemma2 without caps": (
        "Gemma2",
        {
            "num_key_value_heads": 2,
            "head_dim": 16,
            "attn_logit_softcapping": None,
            "final_logit_softcapping": 5.0,
            "pad_token_id": 0,
        },
    ),
    "gemma3": (
        "Gemma3Text",
        {
            "num_key_value_heads": 2,
            "head_dim": 16,
            "sliding_window": 9,
            "query_pre_attn_scalar": 24,
            "layer_types": ["sliding_attention", "full_attention"],
            "pad_token_id": 0,
        },
    ),
    "gemma3, its far layers scaled": (
        "Gemma3Text",
        {
            "num_key_value_heads": 1,
            "head_dim": 16,
            "sliding_window": 9,
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                "full_attention": {"rope_type": "linear", "rope_theta": 1000000.0, "factor": 8.0},
            },
            "pad_token_id": 0,
        },
    ),
    "qwen3_moe": ("Qwen3Moe", EXPERTS),
    "qwen3_moe, one layer dense": ("Qwen3Moe", EXPERTS | {"mlp_only_layers": [0]}),
    "qwen3_moe, every second layer sparse, weights as they are": (
        "Qwen3Moe",
        EXPERTS | {"decoder_sparse_step": 2, "norm_topk_prob": False, "num_experts_per_tok": 1},
    ),
    "qwen3 with biases, tied": (
        "Qwen3",
        {"num_key_value_heads": 1, "head_dim": 12, "attention_bias": True, "tie_word_embeddings": True},
    ),
}


def published(kind: str, folder: Path, **changes: Any) -> Any:
    """A random transformers model, saved to `folder`."""
    model = library_model(getattr(transformers, f"{kind}Config")(**SMALL | changes))
    model.save_pretrained(folder)
    return model


def agree(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", CAUSAL)
def test_causal_families_give_the_logits_of_transformers(case, tmp_path):
    kind, changes = CAUSAL[case]
    reference = published(kind, tmp_path, **changes)
    model = load(tmp_path, device="cpu")
    assert model.family == FAMILY_OF.get(reference.config.model_type, reference.config.model_type)
    assert model.limit is None
    config = model.decoding_config
    assert (config.shift, config.attention, config.mask_id) == (1, "causal", None)
    tokens = torch.randint(0, 61, (2, 40), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = reference(tokens).logits
    agree(model.forward(Plan.full(tokens, model.visible())).logits(), expected)
    cache = model.new_cache(2, 40)
    model.forward(Plan.full(tokens[:, :30], model.visible(), torch.tensor([30, 17])), cache)
    at = torch.tensor([[30], [17]])
    step = Plan(tokens.gather(1, at), at, at, model.visible(), at[:, 0] + 1, torch.zeros(2, 1, dtype=torch.int64))
    agree(model.forward(step, cache).logits()[:, 0], expected[[0, 1], at[:, 0]])


@pytest.mark.parametrize("case", ["mistral", "phi3", "gemma", "gemma2", "gemma3", "qwen3_moe"])
def test_greedy_tokens_are_those_of_transformers_alone_and_in_batches(case, tmp_path):
    kind, changes = CAUSAL[case]
    reference = published(kind, tmp_path, **changes)
    generator = torch.Generator().manual_seed(3)
    lengths = torch.randint(1, 33, (12,), generator=generator).tolist()
    prompts = [torch.randint(3, 61, (length,), generator=generator).tolist() for length in lengths]
    model = pardec.load(tmp_path, device="cpu")
    more = {"max_new_tokens": 12, "stop_ids": [], "sampler": "sequential"}
    batches = [
        row for start in range(0, 12, 4) for row in model.generate(input_ids=prompts[start : start + 4], **more).tokens
    ]
    for index, prompt in enumerate(prompts):
        with torch.no_grad():  # each token is the likeliest after those before it
            expected = reference(torch.tensor([prompt + batches[index]])).logits[0, len(prompt) - 1 : -1].argmax(-1)
        assert batches[index] == expected.tolist()
        assert model.generate(input_ids=[prompt], **more).tokens[0] == batches[index]


def test_older_configs_say_the_same(tmp_path):
    reference = published("Llama", tmp_path, num_key_value_heads=2)
    config = json.loads((tmp_path / "config.json").read_text())
    old = {key: value for key, value in config.items() if key not in ("rope_parameters", "dtype", "head_dim")}
    scaling = {"type": "linear", "factor": 2.0}
    (tmp_path / "config.json").write_text(json.dumps(old | {"rope_theta": 5000.0, "rope_scaling": scaling}))
    again = transformers.LlamaForCausalLM.from_pretrained(tmp_path).eval()
    tokens = torch.arange(20)[None]
    with torch.no_grad():
        expected = again(tokens).logits
        assert not torch.allclose(expected, reference(tokens).logits)
    model = load(tmp_path, device="cpu")
    agree(model.forward(Plan.full(tokens, model.visible())).logits(), expected)


@pytest.mark.parametrize(
    ("kind", "model_type", "family", "changes", "block"),
    [
        ("Qwen2", "Dream", "dream", {"mask_token_id": 60}, None),
        ("Qwen3", "CoDA", "coda", {"mask_token_id": 60, "tie_word_embeddings": False}, None),
        ("Qwen3", "sdar", "sdar", {"mask_token_id": 60, "block_size": 8}, 8),
        ("Qwen3", "sdar", "sdar", {"mask_token_id": 60}, 4),
        ("Qwen2", "Fast_dLLM_Qwen", "fast_dllm_v2", {"mask_token_id": 60, "bd_size": 8}, 8),
        ("Qwen2", "Fast_dLLM_Qwen", "fast_dllm_v2", {"mask_token_id": 60}, 32),
    ],
    ids=["dream", "coda", "sdar-b8", "sdar", "fast_dllm_v2-b8", "fast_dllm_v2"],
)
def test_diffusion_families_are_their_base_under_another_mask(kind, model_type, family, changes, block, tmp_path):
    reference = published(kind, tmp_path, num_key_value_heads=2)
    rewrite(
        tmp_path, model_type=model_type, architectures=["Remote"], auto_map={"AutoModel": "remote.Model"}, **changes
    )
    model = load(tmp_path, device="cpu")
    config = model.decoding_config
    assert (model.family, config.block, config.shift) == (family, block, 0 if family == "sdar" else 1)
    assert (config.mask_id, config.masked, config.eos_ids) == (60, True, (2,))
    tokens = torch.randint(0, 61, (2, 18), generator=torch.Generator().manual_seed(1))
    order = torch.arange(18)
    sees = torch.ones(18, 18, dtype=torch.bool) if block is None else order // block <= order[:, None] // block
    additive = torch.zeros(2, 1, 18, 18).masked_fill(~sees, torch.finfo(torch.float32).min)
    with torch.no_grad():
        expected = reference(tokens, attention_mask=additive).logits
    agree(model.forward(Plan.full(tokens, model.visible())).logits(), expected)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [("Llama", {"architectures": ["StableDiffcoderForCausalLM"]}), ("Qwen2", {"text_mask_token_id": 60})],
    ids=["stable_diffcoder", "sdlm"],
)
@pytest.mark.parametrize("attention", [None, "causal"])
def test_a_diffusion_model_that_is_not_supported_does_not_run_as_the_model_it_is_published_as(
    kind, changes, attention, tmp_path
):
    published(kind, tmp_path, num_key_value_heads=2)
    rewrite(tmp_path, hidden_act="relu", **changes)
    with pytest.raises(ModelError, match="hidden_act='relu' is not supported natively"):
        load(tmp_path, device="cpu", attention=attention)
    rewrite(tmp_path, hidden_act="silu")
    assert load(tmp_path, device="cpu").decoding_config.masked


def llada_folder(folder: Path, **changes: Any) -> Any:
    """A Llama model saved under LLaDA's names and keys."""
    reference = published("Llama", folder, num_key_value_heads=2)
    tensors = load_file(folder / "model.safetensors")
    words = {
        "model.layers": "model.transformer.blocks", "self_attn.o_proj": "attn_out", "self_attn.": "",
        "mlp.gate_proj": "ff_proj", "mlp.up_proj": "up_proj", "mlp.down_proj": "ff_out", "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ff_norm", "model.embed_tokens": "model.transformer.wte",
        "model.norm": "model.transformer.ln_f", "lm_head": "model.transformer.ff_out",
    }  # fmt: skip
    for old, new in words.items():
        tensors = {name.replace(old, new): tensor for name, tensor in tensors.items()}
    save_file(tensors, folder / "model.safetensors")
    config = {
        "model_type": "llada", "architectures": ["LLaDAModelLM"], "block_type": "llama", "activation_type": "silu",
        "layer_norm_type": "rms", "rope": True, "alibi": False, "d_model": 48, "n_layers": 2, "n_heads": 4,
        "n_kv_heads": 2, "mlp_hidden_size": 80, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "vocab_size": 61,
        "embedding_size": 61, "max_sequence_length": 64, "mask_token_id": 60, "eos_token_id": 2, "weight_tying": False,
    }  # fmt: skip
    changed = {key: value for key, value in (config | changes).items() if value != LEFT_OUT}
    (folder / "config.json").write_text(json.dumps(changed))
    return reference


def test_llada_is_a_llama_that_sees_everything(tmp_path):
    reference = llada_folder(tmp_path)
    model = load(tmp_path, device="cpu")
    config = model.decoding_config
    assert (model.family, config.shift, config.attention, config.mask_id) == ("llada", 0, "bidirectional", 60)
    assert model.max_positions == 64
    tokens = torch.randint(0, 61, (2, 15), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = reference(tokens, attention_mask=torch.zeros(2, 1, 15, 15)).logits
    agree(model.forward(Plan.full(tokens, model.visible())).logits(), expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architectures": ["LLaDAMoEModelLM"]}, "expert_intermediate_size must be a whole number"),
        ({"alibi": True}, "alibi=True is not supported"),
        ({"block_type": "sequential"}, "block_type='sequential'"),
        ({"attention_layer_norm": True}, "attention_layer_norm=True"),
        ({"weight_tying": True}, "ties the head.*model.transformer.ff_out.weight in the file differs"),
        ({"multi_query_attention": False}, "n_kv_heads=2, and multi_query_attention=False means 4"),
        ({"multi_query_attention": True}, "n_kv_heads=2, and multi_query_attention=True means 1"),
    ],
)
def test_other_kinds_of_llada_are_refused_by_name(change, message, tmp_path):
    llada_folder(tmp_path, **change)
    with pytest.raises(ModelError, match=message):
        load(tmp_path, device="cpu")


@pytest.mark.parametrize(
    ("key", "meaning"),
    [("rope", "positions that are not rotated"), ("layer_norm_type", "LayerNorm"), ("weight_tying", "the embedding")],
)
def test_what_llada_means_by_a_key_that_is_left_out_is_said(key, meaning, tmp_path):
    """The class of its authors has other defaults than the published files."""
    llada_folder(tmp_path / "whole")
    llada_folder(tmp_path / "less", **{key: LEFT_OUT})
    whole = load(tmp_path / "whole", device="cpu")
    with pytest.warns(UserWarning, match=f"config.json of less leaves out {key}: .* means .*{meaning}"):
        less = load(tmp_path / "less", device="cpu")
    tokens = torch.arange(12)[None]
    plan = Plan.full(tokens, whole.visible())
    assert torch.equal(less.forward(plan).logits(), whole.forward(plan).logits())


# What the classes of the authors have where a config leaves a key out.
AUTHORS = {
    "llada2": {
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "n_group": 8,
        "topk_group": 4,
        "routed_scaling_factor": 2.5,
        "partial_rotary_factor": 0.5,
        "rms_norm_eps": 1e-5,
        "head_dim": 12,
    },
    "llada_moe": {
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "expert_intermediate_size": 24,
        "rope_theta": 5e4,
        "rms_norm_eps": 1e-5,
    },
    "nemotron": {"num_key_value_heads": 8, "head_dim": 128, "rms_norm_eps": 1e-5, "rope_theta": 1e6},
    "wedlm": {"attention_bias": True, "head_dim": 12},
}
STATED = ("num_experts", "num_experts_per_tok", "moe_intermediate_size", "expert_intermediate_size")  # no defaults


@pytest.mark.parametrize("family", AUTHORS)
def test_keys_that_a_config_leaves_out_have_the_values_of_the_authors_class(family):
    shape = FAMILIES[family].decoder
    plain = {**SMALL, "hidden_size": 96, "num_attention_heads": 8, "num_key_value_heads": 8}
    plain = {key: value for key, value in plain.items() if key not in AUTHORS[family]}
    whole = plain | AUTHORS[family]
    for key in AUTHORS[family]:
        less = {name: value for name, value in whole.items() if name != key}
        if family == "llada_moe" and key == "rope_theta":
            with pytest.raises(ModelError, match="rope_theta is missing"):
                shape(less)
        elif key not in STATED:
            assert shape(less) == shape(whole), key
    for key in whole.keys() - set(STATED) - set(SMALL):
        other = {"num_key_value_heads": 4, "attention_bias": False, "head_dim": 24, "n_group": 4, "topk_group": 2}.get(
            key, 0.25
        )
        if (family, key) != ("llada_moe", "head_dim"):
            assert shape(whole | {key: other}) != shape(whole), key


# Families that do not know what masks see in a window (SDLM, WeDLM), or whose classes have the keys of Qwen3's windows
# and attend to the whole text.
UNWINDOWED = ("sdlm", "wedlm", "sdar", "sdar_moe", "llada2")


@pytest.mark.parametrize(
    ("family", "change"),
    [
        *((family, {"use_sliding_window": True}) for family in ("coda", *UNWINDOWED)),
        ("coda", {"attention_kernel": "default"}),
        ("coda", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
        ("dimple", {"full_attn_mask": False}),
        ("gemma", {"hidden_act": "relu"}),
        ("gemma", {"is_causal": False}),
        ("gemma", {"use_bidirectional_attention": True}),
        ("nemotron", {"dlm_paradigm": "autoregressive"}),
    ],
    ids=str,
)
def test_settings_that_a_family_does_not_compute_are_refused_by_name(family, change):
    ((key, value),) = change.items()
    with pytest.raises(Unsupported, match=re.escape(f"{key}={value!r} is not supported natively")):
        FAMILIES[family].decoder({**SMALL, **change})


@pytest.mark.parametrize("family", UNWINDOWED)
def test_windows_that_are_off_are_read(family):
    FAMILIES[family].keys.read({**SMALL, "use_sliding_window": False, "sliding_window": 4, "max_window_layers": 0})


def test_defaults_of_coda_are_those_of_its_own_class():
    small = {"vocab_size": 61, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2}
    found, untied = (FAMILIES["coda"].decoder(small | more) for more in ({}, {"tie_word_embeddings": False}))
    assert (found.heads, found.kv_heads, found.head_dim, found.tied, found.qk_norm) == (16, 8, 128, True, True)
    assert found.frequencies[1] == pytest.approx(1000000 ** (-2 / 128))
    assert not untied.tied


def test_the_first_checkpoints_of_gemma_say_gelu_and_mean_its_tanh_approximation(tmp_path):
    reference = published("Gemma", tmp_path, num_key_value_heads=1, head_dim=20, pad_token_id=0)
    rewrite(tmp_path, hidden_act="gelu", hidden_activation=None)
    model, tokens = load(tmp_path, device="cpu"), torch.arange(3, 23)[None]
    assert model.family == "gemma"
    with torch.no_grad():
        agree(model.forward(Plan.full(tokens, model.visible())).logits(), reference(tokens).logits)


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_recorded_logits_are_matched(family):
    folder = GOLDEN / family
    cases = [case for case in json.loads((folder / "cases.json").read_text()) if case["method"] == "forward_logits"]
    recorded = load_file(folder / "tensors.safetensors")
    model = load(folder / "checkpoint", device="cpu")
    assert cases
    for case in cases:
        padding = case["params"].get("left_pad", 0)  # rows are left-aligned here, so padding is left out
        tokens = torch.tensor([case["input_ids"]])[:, padding:]
        expected = recorded[case["logits_tensor"]][padding:]
        found = model.forward(Plan.full(tokens, model.visible())).logits()[0]
        assert (found - expected).abs().max() < 1e-4 * expected.abs().max()


def test_a_sliding_window_bounds_the_length_of_masked_models_alone(tmp_path):
    slides = {"use_sliding_window": True, "sliding_window": 12, "max_window_layers": 1}
    reference = published("Qwen2", tmp_path, num_key_value_heads=2, **slides)
    assert load(tmp_path, device="cpu").limit is None
    rewrite(tmp_path, model_type="Dream", mask_token_id=60)
    model = load(tmp_path, device="cpu")
    assert (model.family, model.limit) == ("dream", 12)
    tokens = torch.arange(12)[None]
    with torch.no_grad():
        expected = reference(tokens, attention_mask=torch.zeros(1, 1, 12, 12)).logits
    agree(model.forward(Plan.full(tokens, model.visible())).logits(), expected)
    with pytest.raises(CapacityError, match="up to 12 positions"):
        model.new_cache(1, 13)


def test_a_window_is_counted_in_positions_in_a_tree_too(tmp_path):
    reference = published("Mistral", tmp_path, num_key_value_heads=2, sliding_window=3)
    model = load(tmp_path, device="cpu")
    tokens = torch.randint(0, 61, (1, 12), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        expected = reference(tokens).logits[0, 8:]
    cache = model.new_cache(1, 20)
    model.forward(Plan.full(tokens[:, :8], model.visible()), cache)
    # A chain 0-2-4-6 of nodes, and beside it another of other tokens.
    nodes = torch.stack((tokens[0, 8:], tokens[0, 8:] * 0 + 5), 1).flatten()[None]
    parents, slots = torch.tensor([-1, -1, 0, 1, 2, 3, 4, 5]), torch.arange(8, 16)[None]
    positions, everything = torch.tensor([[8, 8, 9, 9, 10, 10, 11, 11]]), torch.arange(8)[None]
    tree = Visible.tree(parents, torch.tensor([8]))
    plan = Plan(nodes, positions, slots, tree, torch.tensor([16]), everything)
    agree(model.forward(plan, cache).logits()[0, ::2], expected)


def test_every_module_is_found_in_order_and_listing_them_needs_no_torch():
    code = "import sys; from pardec.models.families import FAMILIES; print(*FAMILIES, 'torch' in sys.modules)"
    listed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    modules = {file.stem for file in (ROOT / "models" / "families").glob("*.py")}
    *names, has_torch = listed.split()
    assert has_torch == "False"
    # Families of vectors and of token maps are not in the table.
    others = {"infinity", "mar", "nextstep", "var"}
    of_families = modules - {"__init__", "base", "config_files", "experts", "llama_like"} - others
    assert list(dict.fromkeys(name.partition("-")[0] for name in names)) == sorted(of_families)


def test_a_config_is_claimed_by_one_family():
    assert match({"model_type": "llama"}) is FAMILIES["llama"]
    assert match({"model_type": "mamba"}) is None
    assert match({}) is None
    for later in ("gemma2", "gemma3", "gemma3_text", "gemma4", "recurrent_gemma", "diffusion_gemma"):
        assert match({"model_type": later}) is not FAMILIES["gemma"]
    with pytest.raises(ValueError, match="registered twice"):
        register(FAMILIES["llama"])
    twin = FamilySpec(
        name="twin",
        summary="",
        matches=lambda config: config.get("model_type") == "llama",
        decoder=FAMILIES["llama"].decoder,
        names={},
        attention="causal",
        shift=1,
    )
    register(twin)
    try:
        for tensors in ((), ("model.norm.weight",)):
            with pytest.raises(ModelError, match="several families: llama, twin"):
                match({"model_type": "llama"}, tensors)
    finally:
        del FAMILIES["twin"]
    register(replace(twin, has=("model.own.weight",)))
    try:  # a tensor tells them apart, unless the other family has a claim to it too
        assert match({"model_type": "llama"}, ("model.norm.weight",)) is FAMILIES["llama"]
        with pytest.raises(ModelError, match="several families: llama, twin"):
            match({"model_type": "llama"}, ("model.norm.weight", "model.own.weight"))
    finally:
        del FAMILIES["twin"]
