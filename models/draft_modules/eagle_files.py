"""The published layouts of EAGLE: tensor names, and config keys of the layers.

    EAGLE-1, EAGLE-2, HASS   `fc.*`, `layers.{i}.*`; in old files of the speculators library `fusion_fc`, `transformer`
    FSPAD                    as EAGLE-1, with `fc.fc.*`, `fc.mlp.*` and `layers.0.mlp.down_proj` of twice the width
    Dovetail                 as EAGLE-1, with `fc1.*` and `gate.*` in place of `fc.*`: names of pardec's own, since the
                             authors' files were not at hand
    EAGLE-3                  `fc.weight`, `midlayer.*`, `norm.weight`, `lm_head.weight`, `d2t`, `t2d`
    EAGLE-3, speculators     the same with `layers.0.*`, more layers after it, and a nested config

Tensors decide where a config can be wrong: biases, norms of heads and widths of heads are those of the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from ..decoder_config import DecoderConfig
from ..errors import ModelError
from ..families.llama_like import shape
from ..files.weights import Published, count_parts
from .contracts import DraftFiles
from .parameters import check_followed, check_method, layer_names, one_rotation

# Tensors of P-EAGLE, DFlash, and a drafter of blocks in EAGLE-1's layout, whose other tensors have EAGLE's names.
_FOREIGN = ("mask_hidden", "hidden_norm.weight", "block_offsets.weight")
HARMLESS = (r".*rotary_emb\.inv_freq",)


@dataclass(frozen=True, slots=True)
class EagleLayout:
    """The contents of one folder: the shape of its layers, its flags, and the published names of its parameters."""

    version: Literal["1", "3", "fspad"]
    style: str  # the project that the layout comes from, for people
    config: DecoderConfig  # shape of the layers
    features: int  # number of the target's states that are fused; 1 in EAGLE-1
    vocabulary: int | None  # number of ids of the head; None: the head is the target's
    norm_residual: bool = False  # whether the first layer adds to the normalised state
    norm_inputs: Literal["", "each", "all"] = ""  # RMSNorm of each of the target's states, or of their concatenation
    norm_output: bool = False  # whether the normalised state is fed back
    norm_head: bool = True  # whether the head reads the normalised state
    gated: bool = False  # whether a learned gate mixes states and embeddings
    tied: bool = False  # whether the head is the target's, or its rows `d2t`

    def names(self, published: Mapping[str, Published]) -> dict[str, str | tuple[str, ...]]:
        """The published name or names of each possible parameter."""
        old = "fusion_fc.weight" in published
        fusion = "fusion_fc" if old else "fc.fc" if self.version == "fspad" else "fc1" if self.gated else "fc"
        first = (
            "transformer." if old else "midlayer." if "midlayer.self_attn.q_proj.weight" in published else "layers.0."
        )
        names: dict[str, str | tuple[str, ...]] = {
            "fc_weight": f"{fusion}.weight",
            "fc_bias": f"{fusion}.bias",
            "gate_weight": "gate.weight",
            "gate_bias": "gate.bias",
            "inputs_norm": "input_norm.weight",
            "embed_norm": first + "input_layernorm.weight",
            "state_norm": first + "hidden_norm.weight",
            "norm": "norm.weight",
            "head": "lm_head.weight",
            "embedding": "embed_tokens.weight",
        }
        names |= {f"fusion.{part}": f"fc.mlp.{part}_proj.weight" for part in ("gate", "up", "down")}
        names["fusion.norm"] = "fc.post_attention_layernorm.weight"
        names |= {f"each_norm.{index}": f"fc_norm.{index}.weight" for index in range(self.features)}
        names |= layer_names("first.", first)
        for index in range(1, self.config.layers):
            names |= layer_names(f"later.{index - 1}.", f"layers.{index}.")
        return names


def is_eagle(config: Mapping[str, Any], published: Mapping[str, Published]) -> bool:
    """Whether these are the tensors of an EAGLE of any version."""
    if any(name in published for name in _FOREIGN):
        return False
    attention = any(f"{first}self_attn.q_proj.weight" in published for first in ("midlayer.", "layers.0."))
    gated = "fc1.weight" in published and "gate.weight" in published
    fused = "fc.weight" in published or "fc.fc.weight" in published or gated
    return "fusion_fc.weight" in published or (fused and attention)


def read_layout(files: DraftFiles) -> EagleLayout:
    """The layout of the files. Raises ModelError for an unsupported variant, and for a config without layers."""
    config, published = files.config, files.published
    check_method(files, "eagle", "eagle3")
    for name in ("embedding_layernorm.weight", "pre_lm_head_layernorm.weight"):
        if name in published:
            raise ModelError(
                f"{files.name} has {name}: this variant of HASS (layernorms) is not supported",
                "two libraries disagree on the place of that norm",
            )
    third = any(f"{first}.hidden_norm.weight" in published for first in ("midlayer", "layers.0"))
    return _third(files, config, published) if third else _first(files, config, published)


def _first(files: DraftFiles, config: Mapping[str, Any], published: Mapping[str, Published]) -> EagleLayout:
    old = "fusion_fc.weight" in published
    first = "transformer" if old else "layers.0"
    if f"{first}.input_layernorm.weight" in published:
        raise ModelError(
            f"{files.name} has {first}.input_layernorm.weight: the first layer of an EAGLE has no norm before it",
            "if its config has `layernorms`: that variant is not supported",
        )
    layers = layer_shape(files, config.get("transformer_layer_config") or config, first, published)
    head = "lm_head.weight" in published
    if "fc.fc.weight" in published:
        if layers.layers > 1:
            raise ModelError(f"{files.name} is an FSPAD of {layers.layers} layers", "only one layer is supported")
        return EagleLayout("fspad", "official", layers, 1, layers.vocab if head else None, norm_head=False)
    return EagleLayout(
        "1",
        "speculators" if old else "official",
        layers,
        1,
        layers.vocab if head else None,
        norm_head=False,
        gated="gate.weight" in published,
    )


def _third(files: DraftFiles, config: Mapping[str, Any], published: Mapping[str, Published]) -> EagleLayout:
    nested = config.get("transformer_layer_config")
    speculators = nested is not None or "speculators_model_type" in config
    first = "midlayer" if "midlayer.hidden_norm.weight" in published else "layers.0"
    layers = layer_shape(files, nested or config, first, published, slides=speculators)
    if layers.each:
        raise ModelError(
            f"layer_types of {files.name} names layers with and without a window",
            "supported: the same attention in all layers",
        )
    width = config.get("target_hidden_size") or layers.width
    columns = published["fc.weight"].shape[-1]
    if columns % width:
        raise ModelError(f"fc.weight of {files.name} has {columns} columns, not a multiple of the target's {width}")
    each, every = "fc_norm.0.weight" in published, "input_norm.weight" in published
    for flag, present, names in (("fc_norm", each, "fc_norm.0.weight"), ("norm_before_fc", every, "input_norm.weight")):
        if bool(config.get(flag)) != present and (config.get(flag) is not None or speculators):
            what = f"and its file {'has' if present else 'lacks'} {names}"
            raise ModelError(f"the config of {files.name} has {flag}={config.get(flag)}, {what}")
    if each and every:
        raise ModelError(f"{files.name} has both fc_norm and input_norm", "at most one of them is supported")
    ids = published.get("d2t")
    known = layers.vocab if ids is None or len(ids.shape) != 1 else ids.shape[0]
    vocabulary = config.get("draft_vocab_size") or known
    shared = bool(config.get("tie_word_embeddings")) or vocabulary == layers.vocab
    tied = shared and "lm_head.weight" not in published
    output = config.get("norm_output")  # two projects use this key with different meanings
    return EagleLayout(
        "3",
        "speculators" if speculators else "official",
        layers,
        columns // width,
        int(vocabulary),
        norm_residual=bool(config.get("norm_before_residual")),
        norm_inputs="each" if each else "all" if every else "",
        norm_output=bool(output) and speculators,
        norm_head=speculators or output is None or bool(output),
        tied=tied,
    )


def layer_shape(
    files: DraftFiles,
    config: Mapping[str, Any],
    first: str,
    published: Mapping[str, Published],
    *,
    slides: bool = False,
) -> DecoderConfig:
    """The shape of the layers; an absent key has Llama's default (rotary base 10000, epsilon 1e-6).

    With `slides`, layer_types says which layers have the sliding window, as in the speculators library; the authors'
    code has no windows.
    """
    config = one_rotation(config)
    check_followed(files, config)
    kind = "qwen3" if config.get("model_type") == "qwen3" else "llama"
    if files.config.get("transformer_layer_config") and (own := config.get("model_type")) not in (None, "llama", kind):
        raise ModelError(
            f"the layers of {files.name} are those of {own!r} (transformer_layer_config)", "supported: llama, qwen3"
        )
    slides = slides and (kind == "qwen3" or bool(config.get("layer_types")))  # Llama's class makes no layer_types
    windows = () if slides else ("sliding_window", "layer_types")
    settings = {key: value for key, value in config.items() if key not in windows}
    settings.setdefault("num_hidden_layers", max(1, count_parts(published, "layers")))
    absent = [key for key in ("hidden_size", "num_attention_heads", "intermediate_size") if not settings.get(key)]
    if absent:
        raise ModelError(f"the config of {files.name} lacks {' and '.join(absent)}")
    query = published.get(f"{first}.self_attn.q_proj.weight")
    if query is None:
        raise ModelError(f"{files.name} lacks {first}.self_attn.q_proj.weight")
    if not settings.get("head_dim"):
        settings["head_dim"] = query.shape[0] // settings["num_attention_heads"]
    layers = shape(settings, kind)
    return replace(
        layers,
        qkv_bias=f"{first}.self_attn.q_proj.bias" in published,
        out_bias=f"{first}.self_attn.o_proj.bias" in published,
        mlp_bias=f"{first}.mlp.down_proj.bias" in published,
        qk_norm=f"{first}.self_attn.q_norm.weight" in published,
        tied=False,
    )
