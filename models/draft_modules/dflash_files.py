"""The published layouts of DFlash, DFlash 2 and DSpark: tensor names and config keys.

    DFlash   `fc.weight`, `hidden_norm.weight`, `layers.{i}.*`, `norm.weight`; what else it needs is the target's
    DSpark   the same with `embed_tokens`, `lm_head`, `markov_head.*`, `confidence_head.*`
    DFlash 2  those of DFlash with `layers.{i}.{attention,mlp}_conv.*`, `candidate_selector.*`
    a reduced vocabulary   `d2t`, `t2d` and a head of these ids, or none: the target's rows

Keys of the method are in `dspark_config`, `dflash_config` or at the top level. Tensors decide where a config can be
wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..decoder_config import DecoderConfig
from ..errors import ModelError, listed
from ..families.llama_like import shape
from ..files.weights import Published, count_parts
from ..model import LanguageModel
from .contracts import DraftFiles
from .parameters import check_followed, check_head, check_method, layer_names, one_rotation

TRANSITIONS = ("vanilla", "gated", "rnn")
_QUERY = "layers.0.self_attn.q_proj.weight"
_LONGEST = 4096  # limit of a block's tokens


@dataclass(frozen=True, slots=True)
class DFlashLayout:
    """The layout of one folder: its configuration and parts."""

    style: str  # the project that the layout comes from, for people
    config: DecoderConfig  # shape of the layers
    block: int  # B, the number of queries: the last token and masks
    mask: int
    taps: tuple[int, ...]  # layers of the target whose outputs are fused
    reason: str  # why these layers
    from_anchor: bool  # whether the last token's own query drafts, too
    causal: tuple[bool, ...]  # per layer: whether a query sees only earlier queries of its block
    vocabulary: int | None  # number of ids that it drafts; None: all
    scale: float = 1.0  # factor of embeddings
    multiplier: float = 1.0  # factor of logits
    cap: float | None = None  # logits x become cap * tanh(x / cap)
    transition: str = ""  # type of the Markov head, "" without one
    rank: int = 0
    selected: int = 0  # ids per position that a selector scores
    conv_taps: int = 0  # taps of the convolutions around attention and MLP; 0: there are none
    conv_group: int = 1  # channels that share a kernel's varying part

    @property
    def depth(self) -> int:
        """Number of tokens that a pass drafts."""
        return self.block - (not self.from_anchor)

    @property
    def names(self) -> dict[str, str | tuple[str, ...]]:
        """The published name or names of each possible parameter."""
        names: dict[str, str | tuple[str, ...]] = {
            "fc_weight": "fc.weight",
            "hidden_norm": "hidden_norm.weight",
            "norm": "norm.weight",
            "embedding": "embed_tokens.weight",
            "head": "lm_head.weight",
            "transition.table": "markov_head.markov_w1.weight",
            "transition.output": "markov_head.markov_w2.weight",
            "transition.gate": "markov_head.gate_proj.weight",
            "transition.gate_bias": "markov_head.gate_proj.bias",
            "transition.joint": "markov_head.joint_proj.weight",
            "transition.joint_bias": "markov_head.joint_proj.bias",
            "transition.projection": "candidate_selector.hidden_projection.weight",
            "confidence": "confidence_head.proj.weight",
            "confidence_bias": "confidence_head.proj.bias",
        }
        if self.selected:
            names["transition.table"] = "candidate_selector.predecessor_codebook"
            names["transition.output"] = "candidate_selector.successor_codebook"
        for index in range(self.config.layers):
            names |= _layer(f"layers.{index}.")
        return names

    def fused_rows(self, name: str) -> tuple[int, ...]:
        """Rows of each tensor in a fused parameter with this last part of its name."""
        config = self.config
        rows = config.mlp_width if name.startswith("gate_up") else config.kv_heads * config.head_dim
        return rows, rows


def is_dflash(config: Mapping[str, Any], published: Mapping[str, Published]) -> bool:
    """Whether these are the tensors of a DFlash, DFlash 2 or DSpark."""
    return {"hidden_norm.weight", "fc.weight", _QUERY} <= set(published)


def check_target(files: DraftFiles, target: LanguageModel, layout: DFlashLayout) -> None:
    """Raises ModelError where widths or vocabularies differ."""
    width, published = layout.config.width, files.published
    columns = published["fc.weight"].shape[-1]
    if columns != len(layout.taps) * target.width:
        raise ModelError(
            f"fc.weight of {files.name} reads {len(layout.taps)} states of width {columns // len(layout.taps)};"
            f" those of {target.name} have {target.width}",
            "it was trained for another target",
        )
    lacks = [name for name in ("embed_tokens.weight", "lm_head.weight") if name not in published]
    if width != target.width and lacks:
        raise ModelError(
            f"{files.name} has width {width} and {target.name} {target.width}, and no {lacks[0]} of its own",
            "it was trained for another target",
        )
    if abs(layout.config.vocab - target.vocab_size) > target.vocab_size // 100:  # a smaller difference is padding
        raise ModelError(
            f"{files.name} is for a vocabulary of {layout.config.vocab} ids; {target.name} has {target.vocab_size}",
            "it was trained for another target",
        )
    _check_rows(files, target, layout)
    rows = (
        len(target.decoder.embedding) if "embed_tokens.weight" in lacks else published["embed_tokens.weight"].shape[0]
    )
    if layout.mask >= rows:
        raise ModelError(f"mask_token_id {layout.mask} of {files.name} is outside its {rows} embeddings")
    if "lm_head.weight" in lacks:
        check_head(files.name, target)
    if (confidence := published.get("confidence_head.proj.weight")) is not None:
        expected = {width, width + layout.rank}
        if confidence.shape not in {(1, each) for each in expected}:
            raise ModelError(
                f"confidence_head.proj.weight of {files.name} is {list(confidence.shape)}; it needs one row of"
                f" {' or '.join(map(str, sorted(expected)))} numbers"
            )


def _check_rows(files: DraftFiles, target: LanguageModel, layout: DFlashLayout) -> None:
    """Raises ModelError for tables and heads of other ids than the target's, or than those that are drafted."""
    whole = target.vocab_size
    for name in ("markov_head.markov_w1.weight", "markov_head.markov_w2.weight"):
        if layout.transition in TRANSITIONS and name not in files.published:
            raise ModelError(f"{files.name} lacks {name}", "export it again, with both matrices of its Markov head")
    rows = {"embed_tokens": whole, "markov_head.markov_w1": whole, "markov_head.markov_w2": layout.vocabulary or whole}
    if layout.vocabulary is None:
        rows["lm_head"] = whole
    for name, count in rows.items():
        entry = files.published.get(f"{name}.weight")
        padding = whole // 100 if count == whole else 0
        if entry is not None and abs(entry.shape[0] - count) > padding:
            raise ModelError(
                f"{name}.weight of {files.name} has {entry.shape[0]} rows, and {count} ids need one each",
                "it was trained for another target, or for other draft ids",
            )


def read_layout(files: DraftFiles, layers: int, taps: str | None = None) -> DFlashLayout:
    """The layout of the files, for a target of `layers`. Raises ModelError for an unsupported variant."""
    config, published = files.config, files.published
    _refuse(files)
    method = {**(config.get("dflash_config") or {}), **(config.get("dspark_config") or {})}

    def value(name: str, default: Any = None) -> Any:
        stated = method.get(name)
        stated = config.get(name) if stated is None else stated
        return default if stated is None else stated

    block, mask = value("block_size", 16), value("mask_token_id")
    if not isinstance(block, int) or isinstance(block, bool) or block < 2:
        raise ModelError(f"block_size of {files.name} must be a whole number of at least 2, got {block!r}")
    if block > _LONGEST:
        raise ModelError(f"block_size of {files.name} is {block}, and blocks of more than {_LONGEST} are not supported")
    if not isinstance(mask, int) or isinstance(mask, bool) or mask < 0:
        raise ModelError(
            f"the config of {files.name} lacks mask_token_id",
            "add the id of the mask token, of which its blocks consist",
        )
    shaped = _layers(files, config.get("transformer_layer_config") or config)
    spark = "markov_head.markov_w1.weight" in published or "confidence_head.proj.weight" in published
    chosen, reason = _taps(files, value, shaped.layers, layers, taps)
    transition = str(value("markov_head_type", "vanilla")).lower() if spark and value("markov_rank", 0) else ""
    if transition not in ("", *TRANSITIONS):
        raise ModelError(
            f"{files.name} has a Markov head of type {transition!r}, which is not supported",
            f"supported types: {listed(TRANSITIONS)}",
        )
    windows = [shaped.of(layer).window for layer in range(shaped.layers)]
    sliding = [window is not None for window in windows]
    if spark and any(sliding):
        raise ModelError(f"{files.name} is a DSpark with sliding layers, which are not supported")
    inside = _causal(files, value, sliding)
    if any(window is not None and window < block and not each for window, each in zip(windows, inside, strict=True)):
        raise ModelError(
            f"{files.name} has layers that are not causal, with a sliding window below its block of {block} tokens",
            "such layers are not supported: use a draft module without them",
        )
    anchor = value("sample_from_anchor", spark)
    reduced = _reduced(files, value("draft_vocab_size"), shaped.vocab)
    selected, taps_group = _selector(files, value, shaped.width, reduced is not None or spark)
    if selected:
        transition = "selector"
    rank = "selector_rank" if selected else "markov_rank"
    return DFlashLayout(
        "DSpark" if spark else "DFlash 2" if selected else "DFlash",
        shaped,
        block,
        mask,
        chosen,
        reason,
        anchor,
        inside,
        reduced,
        float(value("input_embedding_scale", 1.0)),
        float(value("output_multiplier", 1.0)),
        float(value("final_logit_softcapping", 0.0)) or None,
        transition,
        int(value(rank, 0)) if transition else 0,
        selected,
        *taps_group,
    )


def _causal(files: DraftFiles, value: Any, sliding: list[bool]) -> tuple[bool, ...]:
    """For each layer, whether attention inside a block is causal; by default it is in sliding layers.

    z-lab's `is_causal` says it of all layers, `sliding_window_non_causal` of the speculators library of sliding ones;
    that library leaves out what is a DFlash 2's default, True.
    """
    causal, both_ways = value("is_causal"), value("sliding_window_non_causal")
    for name, stated in (("is_causal", causal), ("sliding_window_non_causal", both_ways)):
        if stated is not None and not isinstance(stated, bool):
            raise ModelError(f"{name} of {files.name} must be true or false, got {stated!r}")
    if both_ways is None and causal is None and files.config.get("speculators_model_type") == "dflash2":
        both_ways = True
    if causal is not None:
        if both_ways is not None and any(sliding) and causal == both_ways:
            raise ModelError(
                f"{files.name} has is_causal={causal} and sliding_window_non_causal={both_ways}, which contradict"
                " each other",
                "leave one of them out of its config.json",
            )
        return (causal,) * len(sliding)
    return tuple(slides and not both_ways for slides in sliding)


def _reduced(files: DraftFiles, stated: Any, whole: int) -> int | None:
    """The number of drafted ids; None for the whole vocabulary, whose size the speculators library states as well."""
    if stated is None:
        return None
    if not isinstance(stated, int) or isinstance(stated, bool) or not 0 < stated <= whole:
        raise ModelError(f"draft_vocab_size of {files.name} must lie in 1..{whole}, its vocabulary, got {stated!r}")
    return stated if stated < whole or "d2t" in files.published else None


def _selector(files: DraftFiles, value: Any, width: int, mixed: bool) -> tuple[int, tuple[int, int]]:
    """DFlash 2's number of ids that the selector scores, and its convolutions' taps and group; 0 for others."""
    keys = ("selector_top_k", "selector_rank", "conv_kernel_size", "conv_group_size")
    own = next((name for name in files.published if "_conv." in name or name.startswith("candidate_selector.")), None)
    if own is None and "DFlash2DraftModel" not in (files.config.get("architectures") or ()):
        return 0, (0, 1)
    if mixed:
        raise ModelError(
            f"{files.name} is a DFlash 2 ({own}) with a Markov head, a confidence head or a reduced vocabulary",
            "no such combination is published",
        )
    values = [value(key) for key in keys]
    unusable = [key for key, each in zip(keys, values, strict=True) if not isinstance(each, int) or each < 1]
    if unusable:
        raise ModelError(f"{files.name} is a DFlash 2, and its config lacks {listed(unusable)}")
    count, _, taps, group = values
    if width % group:
        raise ModelError(f"conv_group_size {group} of {files.name} does not divide its width {width}")
    return count, (taps, group)


def _refuse(files: DraftFiles) -> None:
    published = files.published
    check_method(files, "dflash", "dflash2", "dspark")
    foreign = next((name for name in published if "correction" in name or name.startswith("draft_adapter.")), None)
    if foreign is not None:
        raise ModelError(f"{files.name} has {foreign}: this variant of DFlash is not supported")


def _taps(files: DraftFiles, value: Any, drafts: int, layers: int, taps: str | None) -> tuple[tuple[int, ...], str]:
    """The layers of the target whose outputs are fused (-1 is the embedding), and the reason."""
    width = files.published["fc.weight"].shape[-1]
    if taps is not None:
        if not all(part.isdecimal() for part in taps.split("-")):
            raise ModelError(f"taps must be numbers of layers joined by '-', got {taps!r}", "write taps=1-9-17")
        chosen, reason = tuple(map(int, taps.split("-"))), "as requested"
    elif (ids := value("target_layer_ids")) is not None:
        if not isinstance(ids, list) or not all(type(each) is int for each in ids):
            raise ModelError(f"target_layer_ids of {files.name} is no list of numbers: {ids!r}")
        chosen, reason = tuple(ids), "target_layer_ids, which are outputs of layers"
    elif (ids := value("aux_hidden_state_layer_ids")) is not None:
        if not isinstance(ids, list) or not ids or not all(type(each) is int for each in ids):
            raise ModelError(f"aux_hidden_state_layer_ids of {files.name} is no list of numbers: {ids!r}")
        chosen = tuple(each - 1 for each in ids)
        if "speculators_model_type" not in files.config:
            raise ModelError(
                f"{files.name} has aux_hidden_state_layer_ids, which some libraries read as outputs of layers and"
                " others as inputs",
                f"name the layers whose outputs it reads: taps={'-'.join(map(str, ids))}, or each less by one if the"
                " ids are inputs",
            )
        reason = "aux_hidden_state_layer_ids, which the speculators library reads as inputs of layers"
    else:
        chosen = (
            (layers // 2,) if drafts == 1 else tuple(round(1 + i * (layers - 4) / (drafts - 1)) for i in range(drafts))
        )
        reason = "not in its config: spread evenly, one per layer of the module"
    if not all(-1 <= each < layers for each in chosen) or not chosen:
        raise ModelError(
            f"{files.name} reads layers {listed(map(str, chosen))} and the target has 0..{layers - 1}",
            "it was trained for another target",
        )
    if width % len(chosen):
        raise ModelError(f"fc.weight of {files.name} has {width} columns, which {len(chosen)} layers do not divide")
    return chosen, reason


def _layers(files: DraftFiles, config: Mapping[str, Any]) -> DecoderConfig:
    """The shape of the layers."""
    published, settings = files.published, one_rotation(config)
    check_followed(files, {**settings, **(config.get("dflash_config") or {})})
    settings["num_hidden_layers"] = count_parts(published, "layers")
    absent = [key for key in ("hidden_size", "num_attention_heads", "intermediate_size") if not settings.get(key)]
    if absent:
        raise ModelError(f"the config of {files.name} lacks {' and '.join(absent)}")
    if not settings.get("head_dim"):
        settings["head_dim"] = published[_QUERY].shape[0] // settings["num_attention_heads"]
    if settings.get("layer_types"):
        settings["use_sliding_window"] = "sliding_attention" in settings["layer_types"]
    return replace(
        shape(settings, "qwen3"),
        qkv_bias="layers.0.self_attn.q_proj.bias" in published,
        out_bias="layers.0.self_attn.o_proj.bias" in published,
        mlp_bias=False,
        qk_norm="layers.0.self_attn.q_norm.weight" in published,
        tied=False,
    )


def _layer(stem: str) -> dict[str, str | tuple[str, ...]]:
    """Names of the parameters of one layer."""
    attention = stem + "self_attn."
    return layer_names(stem, stem) | {
        stem + "q_weight": attention + "q_proj.weight",
        stem + "q_bias": attention + "q_proj.bias",
        stem + "kv_weight": (attention + "k_proj.weight", attention + "v_proj.weight"),
        stem + "kv_bias": (attention + "k_proj.bias", attention + "v_proj.bias"),
        stem + "attn_conv.base": stem + "attention_conv.base_kernel",
        stem + "attn_conv.projection": stem + "attention_conv.kernel_projection.weight",
        stem + "mlp_conv.base": stem + "mlp_conv.base_kernel",
        stem + "mlp_conv.projection": stem + "mlp_conv.kernel_projection.weight",
    }
