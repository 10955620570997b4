"""Fills the parameters of a draft module with published tensors: each is used, harmless, or named in an error."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..decoder_config import DecoderConfig
from ..errors import ModelError, listed
from ..files.weights import mismatches, read, tensors_of
from ..finite import damaged
from ..kernels import layout
from ..kernels.cpu import block_rounding, int8
from ..kernels.cpu.blocks import GROUP
from ..kernels.cpu.packed import PackedWeight
from ..loading.unread import other_frequencies
from ..model import LanguageModel
from .contracts import DraftFiles, DraftModule

# Values of keys that SGLang and vLLM follow in drafters, though some libraries that train them do not.
_PLAIN = {
    "partial_rotary_factor": 1.0,
    "rope_is_neox_style": True,
    "use_gemma_norm": False,
    "attention_value_scale": 1.0,
}

Names = Mapping[str, str | tuple[str, ...]]  # parameter -> published tensor, or those that are fused in it, in order


def layer_names(parameter: str, stem: str) -> dict[str, str | tuple[str, ...]]:
    """Published names of one layer's parameters, by the decoder's names after `parameter`."""
    return {
        parameter + "attn_norm": stem + "input_layernorm.weight",
        parameter + "mlp_norm": stem + "post_attention_layernorm.weight",
        parameter + "q_norm": stem + "self_attn.q_norm.weight",
        parameter + "k_norm": stem + "self_attn.k_norm.weight",
        parameter + "qkv_weight": tuple(stem + f"self_attn.{part}_proj.weight" for part in "qkv"),
        parameter + "qkv_bias": tuple(stem + f"self_attn.{part}_proj.bias" for part in "qkv"),
        parameter + "out_weight": stem + "self_attn.o_proj.weight",
        parameter + "out_bias": stem + "self_attn.o_proj.bias",
        parameter + "gate_up_weight": (stem + "mlp.gate_proj.weight", stem + "mlp.up_proj.weight"),
        parameter + "gate_up_bias": (stem + "mlp.gate_proj.bias", stem + "mlp.up_proj.bias"),
        parameter + "down_weight": stem + "mlp.down_proj.weight",
        parameter + "down_bias": stem + "mlp.down_proj.bias",
    }


def check_head(name: str, target: LanguageModel) -> None:
    """Raises ModelError for a target that runs through transformers: drafters cannot use its head."""
    if not hasattr(target.decoder, "unembed"):
        raise ModelError(
            f"{name} drafts with the head of {target.name}, which runs in transformers and does not expose it",
            "draft with another method, or use a target of a native family",
        )


def check_followed(files: DraftFiles, config: Mapping[str, Any]) -> None:
    """Raises ModelError for a config value that changes the drafts and that these layers do not support."""
    stated = {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {}), **config}
    for key, plain in _PLAIN.items():
        if stated.get(key, plain) not in (None, plain):
            raise ModelError(
                f"the config of {files.name} has {key}={stated[key]!r}, which is not supported",
                f"supported: {key}={plain!r}",
            )


def check_method(files: DraftFiles, *known: str) -> None:
    """Raises ModelError for files of another method, which may have the same tensors."""
    method = files.config.get("speculators_model_type")
    if method is not None and method not in known:
        raise ModelError(
            f"{files.name} is of another method: its config has speculators_model_type={method!r}",
            f"supported: {listed(known)}",
        )


def one_rotation(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config with one rotation: where types of layers have one each, the sliding layers', as in speculators."""
    rotations = config.get("rope_parameters")
    own = rotations.get("sliding_attention") if isinstance(rotations, dict) else None
    return dict(config) if own is None else {**config, "rope_parameters": own}


def fill(
    module: DraftModule,
    files: DraftFiles,
    names: Names,
    *,
    fused_rows: Callable[[str], tuple[int, ...]],
    harmless: Iterable[str],
    by_rows: tuple[str, ...] = (),
) -> None:
    """Reads every parameter of `module`, which is on the meta device; at most one further tensor is in memory.

    Args:
        fused_rows: the rows of each part of a fused parameter, by the last part of its name.
        harmless: patterns of tensors that need not be read.
        by_rows: parameters that are looked up by rows and not multiplied.
    """
    wanted: dict[str, tuple[str, int, tuple[int, ...]]] = {}  # published -> parameter, first row, shape
    parameters = dict(module.named_parameters())
    for name, parameter in parameters.items():
        parts = names[name]
        rows = (len(parameter),) if isinstance(parts, str) else fused_rows(name.rpartition(".")[2])
        start = 0
        for part, count in zip((parts,) if isinstance(parts, str) else parts, rows, strict=True):
            wanted[part] = name, start, (count, *parameter.shape[1:])
            start += count
    _check(files, wanted, harmless)
    rooms: dict[str, Tensor] = {}

    def store(part: str, tensor: Tensor) -> None:
        name, start, _ = wanted[part]
        if name not in rooms:
            shape = parameters[name].shape
            if name in by_rows:
                rooms[name] = torch.empty(shape, dtype=module.dtype, device=module.device)
            else:
                rooms[name] = layout.empty(shape, dtype=module.dtype, device=module.device, source=tensor.dtype)
        layout.fill(rooms[name], tensor, start)

    read({part: files.published[part] for part in wanted}, store)
    for name, room in rooms.items():
        if wrong := damaged([(name, room)]):
            raise ModelError(f"{files.name} cannot draft: {wrong}", "fetch its files again")
        owner, _, leaf = name.rpartition(".")
        weight = room if name in by_rows else multiplied(files, room)
        setattr(module.get_submodule(owner), leaf, nn.Parameter(weight, requires_grad=False))


def left_out(files: DraftFiles, config: DecoderConfig | None, **copies: Tensor) -> tuple[str, ...]:
    """One line for each tensor of the file that is not used and differs from the one used in its place.

    It is no error: a drafter changes how much is accepted, and no text.

    Args:
        config: of the drafter's layers; rotary frequencies are computed from it. None: it has no layers.
        copies: the target's tensors that are used, by the names that the file's have.
    """
    others = [] if config is None else list(other_frequencies(config, files.published))
    lines = [f"{listed(others, 3)}: not the rotary frequencies of its config, whose own are used"] if others else []
    for name, theirs in copies.items():
        if f"{name}.weight" in files.published:
            (own,) = tensors_of(files.published, f"{name}.weight")
            if not is_copy(own.to(theirs.device, theirs.dtype), theirs):
                lines.append(f"{name}.weight differs from the target's, which is used")
    return tuple(lines)


def _check(files: DraftFiles, wanted: Mapping[str, tuple[str, int, tuple[int, ...]]], harmless: Iterable[str]) -> None:
    used = {name: files.published[name] for name in wanted if name in files.published}
    expected = {name: shape for name, (_, _, shape) in wanted.items()}
    if wrong := mismatches(files.published, used, expected, tuple(harmless)):
        raise ModelError(
            f"the tensors of {files.name} do not match its config and its target; {wrong}",
            "check that config.json and the weights belong together, and that it was trained for this target",
        )


def parameter(*shape: int) -> nn.Parameter:
    """An empty parameter, on the meta device until `fill` reads it."""
    return nn.Parameter(torch.empty(shape))


def multiplied(files: DraftFiles, weight: Tensor) -> Tensor:
    """`weight`, rounded to the bits of `files.quantize` if it is a matrix; to 8 where blocks of 4 do not fit it."""
    if files.quantize is None or weight.dim() != 2:
        return weight
    plain, kind = weight.detach(), "Q4_1"
    if files.quantize == "int4" and plain.shape[1] % GROUP == 0 and not block_rounding.overflows(kind, plain):
        return block_rounding.rounded(kind, plain, weight.dtype, "int8")
    return int8.quantized(plain)


def target_rows(files: DraftFiles, target: LanguageModel, ids: Tensor) -> nn.Parameter:
    """[Vd, E] a copy of the rows `ids` of the target's head; for bfloat16 files it may be bfloat16."""
    weight: Tensor = target.decoder.head.weight  # type: ignore[attr-defined]
    if type(weight) not in (Tensor, nn.Parameter) and not isinstance(weight, PackedWeight):
        raise ModelError(
            f"{files.name} drafts with rows of the head of {target.name}, which is quantized",
            "load it without quantize",
        )
    rows = layout.rows_of(weight, ids.to(weight.device)).detach()
    kinds = {tensor.dtype for tensor in files.published.values() if tensor.dtype is not None}
    source = torch.bfloat16 if torch.bfloat16 in kinds else None
    room = layout.empty(rows.shape, dtype=target.dtype, device=target.device, source=source)
    layout.fill(room, rows.to(room.device))
    return nn.Parameter(multiplied(files, room), requires_grad=False)


def is_copy(own: Tensor | None, theirs: Tensor) -> bool:
    """Whether a matrix equals the target's, which can then be shared."""
    if own is None or own.shape != theirs.shape or own.device != theirs.device:
        return False
    ours, known = layout.dense(own), layout.dense(theirs)
    plain = (Tensor, nn.Parameter)
    return type(ours) in plain and type(known) in plain and torch.equal(ours, known.to(ours.dtype))
