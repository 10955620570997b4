"""The layers that a config taps; and published configs are resolved to the right kind, taps and shapes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from pardec.models.draft_modules.contracts import DraftFiles
from pardec.models.draft_modules.eagle_files import EagleLayout, read_layout
from pardec.models.draft_modules.eagle_taps import find_taps
from pardec.models.draft_modules.load import recognise
from pardec.models.errors import ModelError
from pardec.models.files.weights import Published


def top(*ids: int) -> dict[str, Any]:
    return {"eagle_aux_hidden_state_layer_ids": list(ids)}


def nested(*ids: int) -> dict[str, Any]:
    return {"eagle_config": {**top(*ids), "use_aux_hidden_state": True}}


@pytest.mark.parametrize(
    ("config", "layers", "taps", "others"),
    [
        ({}, 32, (1, 15, 28), None),
        ({"eagle_config": {}}, 61, (1, 29, 57), None),
        (nested(), 61, (1, 29, 57), None),  # an empty list is the default
        ({**top(), **nested(3, 18, 33)}, 36, (3, 18, 33), (2, 17, 32)),
        (top(2, 18, 33), 36, (1, 17, 32), None),  # the default inputs
        (top(1, 17, 32), 36, (1, 17, 32), None),  # the default outputs, lifted to the top unchanged
        (nested(1, 29, 57), 61, (1, 29, 57), None),
        (nested(2, 30, 58), 61, (1, 29, 57), None),  # the default inputs, nested
        (top(3, 18, 33), 36, (2, 17, 32), (3, 18, 33)),
        (nested(3, 18, 33), 36, (3, 18, 33), (2, 17, 32)),
        (top(0, 18, 36), 36, (-1, 17, 35), None),  # embedding and last output; no outputs of 36 layers
        (nested(0, 1, 2), 4, (0, 1, 2), (-1, 0, 1)),
        (top(2, 10, 18, 26), 32, (1, 9, 17, 25), (2, 10, 18, 26)),
        ({**top(3, 18, 33), **nested(1, 17, 32)}, 36, (2, 17, 32), (3, 18, 33)),  # the top level comes first
    ],
)
def test_taps_are_read_by_the_convention_of_where_they_stand(
    config: dict[str, Any], layers: int, taps: tuple[int, ...], others: tuple[int, ...] | None
) -> None:
    found = find_taps(config, layers)
    assert (found.layers, found.others) == (taps, others)
    assert found.reason


def test_chosen_taps_win_and_are_outputs() -> None:
    found = find_taps(top(2, 18, 33), 36, "0-17-35")
    assert (found.layers, found.reason) == ((0, 17, 35), "taps=0-17-35, outputs")


@pytest.mark.parametrize(
    ("config", "layers", "chosen", "message"),
    [
        ({}, 6, None, "names no layers to read, and 6 layers are too few for the default three"),
        (top(2, 18, 40), 36, None, "outputs of layers 1-17-39; the target has layers 0..35"),
        (nested(2, 2, 5), 36, None, "outputs of layers 2-2-5"),
        (top(), 6, None, "names no layers to read"),
        ({"eagle_aux_hidden_state_layer_ids": "2-18-33"}, 36, None, "must be a list of layers"),
        ({"eagle_aux_hidden_state_layer_ids": [2.0, 18, 33]}, 36, None, "must be a list of layers"),
        ({}, 32, "1-x-3", "taps must be layers joined by '-', got '1-x-3'"),
        ({}, 32, "1-15-32", "outputs of layers 1-15-32; the target has layers 0..31"),
    ],
)
def test_ids_that_are_no_layers_are_refused(
    config: dict[str, Any], layers: int, chosen: str | None, message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        find_taps(config, layers, chosen)


# --- configs as they are published: the keys that say anything, and the shapes of the tensors that come with them ---

LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "use_cache": True}
FORGE = {**LLAMA, "architectures": ["LlamaForCausalLMEagle3"], "attention_bias": False, "mlp_bias": False}
ONE = {"num_hidden_layers": 1, "initializer_range": 0.02, "torch_dtype": "float16", "tie_word_embeddings": False}


def speculators(layer: dict[str, Any], **more: Any) -> dict[str, Any]:
    proposal = {"proposal_type": "greedy", "speculative_tokens": 3, "verifier_accept_k": 1, "accept_tolerance": 0.0}
    published = {"proposal_methods": [proposal], "algorithm": "eagle3", "default_proposal_method": "greedy"}
    return {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "speculators_config": published,
        "transformer_layer_config": {**layer, "num_hidden_layers": 1},
        **more,
    }


def sizes(width: int, inner: int, heads: int, kv_heads: int | None, vocab: int) -> dict[str, int]:
    found = {"hidden_size": width, "intermediate_size": inner, "num_attention_heads": heads, "vocab_size": vocab}
    return found if kv_heads is None else {**found, "num_key_value_heads": kv_heads}


QWEN3 = {"model_type": "qwen3", "rope_theta": 1e6, "rms_norm_eps": 1e-6, "head_dim": 128, "use_sliding_window": False}
LLAMA3_SCALING = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
# target -> config, layers of the target, and what it resolves to: version, taps, heads, key heads, width of a head,
# base of the rotation, epsilon, tokens of the head
PUBLISHED: dict[str, tuple[dict[str, Any], int, tuple[Any, ...]]] = {
    "EAGLE, Vicuna 7B": (
        {**LLAMA, **ONE, **sizes(4096, 11008, 32, None, 32000), "rms_norm_eps": 1e-6, "bias": False},
        32,
        ("1", None, 32, 32, 128, 1e4, 1e-6, None),
    ),
    "EAGLE, Llama-3 8B": (
        {**LLAMA, **ONE, **sizes(4096, 14336, 32, 8, 128256), "rms_norm_eps": 1e-5, "rope_theta": 5e5},
        32,
        ("1", None, 32, 8, 128, 5e5, 1e-5, None),
    ),
    "EAGLE, Qwen2 7B": (
        {
            **LLAMA,
            **ONE,
            **sizes(3584, 18944, 28, 4, 152064),
            "rms_norm_eps": 1e-6,
            "rope_theta": 1e6,
            "qkv_bias": True,
            "sliding_window": 131072,
        },
        28,
        ("1", None, 28, 4, 128, 1e6, 1e-6, None),
    ),
    "EAGLE-3, Llama-3.1 8B": (  # no rope_theta: it was trained with 10000, though its target has 500000
        {
            **LLAMA,
            **ONE,
            **sizes(4096, 14336, 32, 8, 128256),
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 2048,
            "draft_vocab_size": 32000,
        },
        32,
        ("3", (1, 15, 28), 32, 8, 128, 1e4, 1e-5, 32000),
    ),
    "EAGLE-3, Vicuna 13B": (
        {**LLAMA, **ONE, **sizes(5120, 13824, 40, 40, 32000), "rms_norm_eps": 1e-6, "draft_vocab_size": 32000},
        40,
        ("3", (1, 19, 36), 40, 40, 128, 1e4, 1e-6, 32000),
    ),
    "SpecForge, Qwen3 of width 1024": (
        {
            **FORGE,
            **ONE,
            **sizes(1024, 4096, 32, 8, 151936),
            "head_dim": 128,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1000000,
            "rope_scaling": None,
            "max_window_layers": 36,
            "sliding_window": None,
            "use_sliding_window": False,
            "draft_vocab_size": 32000,
        },
        28,
        ("3", (1, 13, 24), 32, 8, 128, 1e6, 1e-6, 32000),
    ),
    "SpecForge, 61 layers, nested outputs": (
        {**FORGE, **ONE, **sizes(7168, 18432, 64, 64, 163840), "draft_vocab_size": 32000, **nested(1, 29, 57)},
        61,
        ("3", (1, 29, 57), 64, 64, 112, 1e4, 1e-6, 32000),
    ),
    "61 layers, nested inputs": (
        {**FORGE, **ONE, **sizes(7168, 18432, 64, 64, 163840), "draft_vocab_size": 32000, **nested(2, 30, 58)},
        61,
        ("3", (1, 29, 57), 64, 64, 112, 1e4, 1e-6, 32000),
    ),
    "gpt-oss, the whole vocabulary, scaled rotation, outputs at the top": (
        {
            **FORGE,
            **ONE,
            **sizes(2880, 17280, 64, 8, 201088),
            "head_dim": 64,
            "rms_norm_eps": 1e-5,
            "rope_theta": 5e5,
            "rope_scaling": LLAMA3_SCALING,
            "max_position_embeddings": 65536,
            "draft_vocab_size": 201088,
            **top(1, 17, 32),
        },
        36,
        ("3", (1, 17, 32), 64, 8, 64, None, 1e-5, 201088),
    ),
    "speculators, Llama-3.1 8B": (
        speculators(
            {**LLAMA, **sizes(4096, 14336, 32, 8, 128256), "rms_norm_eps": 1e-5, "rope_theta": 5e5, "head_dim": 128},
            draft_vocab_size=32000,
            norm_before_residual=False,
            target_hidden_size=None,
        ),
        32,
        ("3", (1, 15, 28), 32, 8, 128, 5e5, 1e-5, 32000),
    ),
    "speculators, Qwen3 8B": (
        speculators(
            {**LLAMA, **sizes(4096, 12288, 32, 8, 151936), **QWEN3, "model_type": "llama"},
            draft_vocab_size=32000,
            norm_before_residual=True,
            **top(2, 18, 33),
        ),
        36,
        ("3", (1, 17, 32), 32, 8, 128, 1e6, 1e-6, 32000),
    ),
    "speculators, Qwen3 layer": (
        speculators({**sizes(2048, 6144, 32, 4, 151936), **QWEN3}, draft_vocab_size=64000, norm_output=True),
        48,
        ("3", (1, 23, 44), 32, 4, 128, 1e6, 1e-6, 64000),
    ),
    "speculators, gpt-oss 20B": (
        speculators(
            {**LLAMA, **sizes(2880, 17280, 64, 8, 201088), "head_dim": 64, "rope_theta": 150000, "rms_norm_eps": 1e-5},
            draft_vocab_size=64000,
            norm_before_fc=True,
            **top(2, 12, 21),
        ),
        24,
        ("3", (1, 11, 20), 64, 8, 64, 150000.0, 1e-5, 64000),
    ),
}


def files(config: dict[str, Any], version: str) -> DraftFiles:
    """The tensors of a checkpoint with this config: names and shapes only."""
    layer = config.get("transformer_layer_config", config)
    width, inner, heads = layer["hidden_size"], layer["intermediate_size"], layer["num_attention_heads"]
    kv, dim = layer.get("num_key_value_heads") or heads, layer.get("head_dim") or width // heads
    third = version == "3"
    stem = "layers.0." if not third or "speculators_config" in config else "midlayer."
    reads = 2 * width if third else width
    shapes: dict[str, tuple[int, ...]] = {
        f"{stem}self_attn.q_proj.weight": (heads * dim, reads),
        f"{stem}self_attn.k_proj.weight": (kv * dim, reads),
        f"{stem}self_attn.v_proj.weight": (kv * dim, reads),
        f"{stem}self_attn.o_proj.weight": (width, heads * dim),
        f"{stem}mlp.gate_proj.weight": (inner, width),
        f"{stem}mlp.up_proj.weight": (inner, width),
        f"{stem}mlp.down_proj.weight": (width, inner),
        f"{stem}post_attention_layernorm.weight": (width,),
        "fc.weight": (width, (3 if third else 2) * width),
    }
    if config.get("qkv_bias"):
        shapes |= {
            f"{stem}self_attn.{part}_proj.bias": (count * dim,)
            for part, count in zip("qkv", (heads, kv, kv), strict=True)
        }
    if third:
        shapes |= {f"{stem}{name}.weight": (width,) for name in ("hidden_norm", "input_layernorm")}
        shapes |= {"norm.weight": (width,), "lm_head.weight": (config["draft_vocab_size"], width)}
        shapes |= {"d2t": (config["draft_vocab_size"],), "t2d": (layer["vocab_size"],)}
        if config.get("norm_before_fc"):
            shapes["input_norm.weight"] = (3 * width,)
        if layer["model_type"] == "qwen3":
            shapes |= {f"{stem}self_attn.{part}_norm.weight": (dim,) for part in "qk"}
    published = {name: Published(Path("x"), shape, torch.float16) for name, shape in shapes.items()}
    return DraftFiles("drafter", Path(), config, published)


def summary(found: EagleLayout, config: dict[str, Any], layers: int) -> tuple[Any, ...]:
    stack = found.config
    taps = find_taps(config, layers).layers if found.version == "3" else None
    theta = stack.frequencies[1] ** (-stack.head_dim / 2)
    base = (stack.heads, stack.kv_heads, stack.head_dim, theta, stack.norm_eps)
    return (found.version, taps, *base, found.vocabulary)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configs_resolve(name: str) -> None:
    config, layers, expected = PUBLISHED[name]
    given = files(config, expected[0])
    assert recognise(given).name == "eagle"
    found = read_layout(given)
    made = list(summary(found, config, layers))
    if expected[5] is None:  # a scaled rotation has no one base
        made[5] = None
    for one, other in zip(made, expected, strict=True):
        assert one == (pytest.approx(other, rel=1e-4) if isinstance(other, float) else other)
    assert found.config.window is None
    assert found.config.qkv_bias == bool(config.get("qkv_bias"))
    assert found.norm_residual == bool(config.get("norm_before_residual"))
    assert found.norm_inputs == ("all" if config.get("norm_before_fc") else "")
    assert found.norm_output == bool(config.get("norm_output"))


def test_a_scaled_rotation_is_the_targets_kind() -> None:
    config, *_ = PUBLISHED["gpt-oss, the whole vocabulary, scaled rotation, outputs at the top"]
    plain = {**config, "rope_scaling": None}
    old = {**config, "rope_scaling": {**LLAMA3_SCALING, "type": "llama3"}}
    del old["rope_scaling"]["rope_type"]
    scaled, unscaled, typed = (read_layout(files(each, "3")).config.frequencies for each in (config, plain, old))
    assert scaled == typed
    assert scaled[0] == unscaled[0]
    assert scaled[-1] == pytest.approx(unscaled[-1] / 8)
