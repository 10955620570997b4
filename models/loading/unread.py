"""Published tensors that the decoder does not read: each is compared with the used ones, refused, or left out by name.

Old files hold the rotary frequencies, some repeat a tied head or the weights of an encoder that the decoder shares.
One warning names the tensors that pardec does not compute with, such as a vision tower.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from ..decoder_config import DecoderConfig
from ..errors import AGAIN, ModelError, listed
from ..families import FamilySpec
from ..files.weights import Published, tensors_of

_FREQUENCIES = re.compile(r"(?:.*\.)?(?:layers|blocks)\.(\d+)\..*rotary_emb\.inv_freq|.*rotary_emb\.inv_freq")
_ROUNDING = 5e-3  # relative error of frequencies that were once stored in 16 bits
_TABLE = "freqs_cis"  # the table of the rotation over an image's grid
_MTP = re.compile(r"model\.layers\.(\d+)\.eh_proj\.weight")
MTP_COUNTS = ("num_nextn_predict_layers", "num_mtp_layers")  # config keys
_SCALE = re.compile(r".*\.[kv]_scale")  # divisors of keys or values in 8-bit caches


def has_own_head(config: DecoderConfig, published: Mapping[str, Published], embed: str, head: str) -> bool:
    """Whether the config ties the head to the embedding, but the file has a head that differs from the embedding.

    As in transformers since 5.0, which then uses both.
    """
    both = config.tied and embed in published and head in published
    return both and not same(published, embed, head)


def same(published: Mapping[str, Published], first: str, second: str) -> bool:
    """Whether two published tensors are equal, as numbers."""
    if published[first].shape != published[second].shape or None in (published[first].dtype, published[second].dtype):
        return False
    one, other = tensors_of(published, first, second)
    kind = torch.promote_types(one.dtype, other.dtype)
    return torch.equal(one.to(kind), other.to(kind))


def draft_patterns(layers: int, published: Iterable[str]) -> tuple[str, ...]:
    """Patterns of the tensors in MTP layers, which follow the `layers` of the model and draft for it."""
    numbers = [int(match[1]) for name in published if (match := _MTP.fullmatch(name))]
    return (r"model\.mtp_layers\..*", *(rf"model\.layers\.{number}\..*" for number in numbers if number >= layers))


def mtp_layers(config: Mapping[str, Any], layers: int, published: Mapping[str, Published]) -> tuple[str, bool]:
    """Describes the MTP layers in the files of a model of `layers`; says whether some of config.json's are missing."""
    pattern = "|".join(draft_patterns(layers, published))
    tensors = [name for name in published if re.fullmatch(pattern, name)]
    numbers = {match[1] for name in tensors if (match := re.match(r"model\.(?:mtp_)?layers\.(\d+)\.", name))}
    named = next((count for key in MTP_COUNTS if (count := config.get(key))), 0)
    if isinstance(named, int) and named > len(numbers):
        return f"{named} in config.json, and {len(numbers) or 'none'} in the files", True
    return (f"{len(tensors)} tensors, which draft for the model: -s mtp" if tensors else ""), False


def say_without_mtp(name: str, config: Mapping[str, Any], layers: int, published: Mapping[str, Published]) -> None:
    """Warns in one line of MTP layers that config.json names and the files lack, as quantized copies often do."""
    said, lack = mtp_layers(config, layers, published)
    if lack:
        warnings.warn(f"{name}: MTP layers: {said}; mtp drafts with those of another folder, name=FOLDER", stacklevel=3)


def check_unread(spec: FamilySpec, config: DecoderConfig, published: Mapping[str, Published]) -> None:
    """Raises ModelError, with the name, for an unread tensor that differs from what the decoder computes."""
    check_frequencies(config, published)
    for name in published:
        if name == _TABLE and config.grid is not None:
            (tensor,) = tensors_of(published, name)
            if not _is_grid(tensor, config, config.grid):
                raise ModelError(
                    f"{name} does not match the rotation of this configuration", "leave it out of the file"
                )
        unread = any(re.fullmatch(pattern, name) for pattern in spec.harmless)
        twin = spec.twin(name) if unread else None
        if twin is not None and twin not in published:
            raise ModelError(
                f"{name} is unknown: a {spec.name} model has no tensor {twin}",
                "check that config.json and the weights belong together",
            )
        if twin is not None and not same(published, name, twin):
            raise ModelError(
                f"{name} differs from {twin}, and in a {spec.name} model they are one tensor",
                "a checkpoint with separate weights for the two is not supported",
            )


def check_frequencies(config: DecoderConfig, published: Mapping[str, Published]) -> None:
    """Raises ModelError, with the tensor's name, where a file's rotary frequencies contradict the config."""
    for name, tensor in other_frequencies(config, published).items():
        raise ModelError(
            f"{name} does not match the rotary frequencies of this config.json ({_range(tensor)})",
            "correct rope_theta or rope_parameters; if the buffer is outdated, leave it out of the file",
        )


def other_frequencies(config: DecoderConfig, published: Mapping[str, Published]) -> dict[str, Tensor]:
    """A file's rotary frequencies that contradict the config, by name."""
    others: dict[str, Tensor] = {}
    for name, entry in published.items():
        if match := _FREQUENCIES.fullmatch(name):
            (tensor,) = tensors_of(published, name)
            layers = range(config.layers) if match[1] is None else [min(int(match[1]), config.layers - 1)]
            own = {config.of(layer).frequencies for layer in layers}
            if entry.dtype is None or not any(_are_frequencies(tensor, each) for each in own):
                others[name] = tensor
    return others


def check_floating(name: str, config: Mapping[str, Any], published: Mapping[str, Published]) -> None:
    """Raises ModelError for weights that are no floating-point numbers, in a checkpoint that is not quantized.

    transformers casts them.
    """
    configs = [config, *(inner for inner in config.values() if isinstance(inner, dict))]
    if any(inner.get("quantization_config") for inner in configs):
        return
    foreign = [each for each, entry in published.items() if entry.dtype is None and each.endswith((".weight", ".bias"))]
    if foreign:
        raise ModelError(f"{name}: {len(foreign)} tensors are not floating-point: {listed(foreign, 3)}", AGAIN)


def say_left_out(name: str, spec: FamilySpec, published: Mapping[str, Published]) -> None:
    """Warns in one line of tensors in the checkpoint `name` that are neither read nor compared."""
    scales: list[str] = []
    rest: list[str] = []
    for each in sorted(published):
        read_else = any(re.fullmatch(pattern, each) for pattern in spec.pictured) or spec.twin(each) is not None
        if read_else or _FREQUENCIES.fullmatch(each) or each == _TABLE:
            continue
        if any(re.fullmatch(pattern, each) for pattern in spec.harmless):
            (scales if _SCALE.fullmatch(each) else rest).append(each)
    scales = [
        each for each, value in zip(scales, tensors_of(published, *scales), strict=True) if not bool((value == 1).all())
    ]
    if scales:
        warnings.warn(
            f"{name}: {len(scales)} scales of an 8-bit KV cache are ignored, since pardec does not use one: "
            f"{listed(scales, 3)}",
            stacklevel=3,
        )
    if rest:
        warnings.warn(
            f"{name}: {len(rest)} tensors are ignored, since the model does not use them: {listed(rest, 3)}",
            stacklevel=3,
        )


def say_assumed(name: str, spec: FamilySpec, config: Mapping[str, Any]) -> None:
    """Warns in one line of keys that a config.json leaves out, where the authors' code would then compute otherwise."""
    absent = {key: meaning for key, meaning in spec.assumed.items() if key not in config}
    if absent:
        warnings.warn(
            f"config.json of {name} leaves out {', '.join(absent)}: it is read as the published files are, and to the "
            f"authors' code it means {', '.join(absent.values())}",
            stacklevel=3,
        )


def _are_frequencies(tensor: Tensor, own: tuple[float, ...]) -> bool:
    """Whether `tensor` holds the frequencies, scaled or not yet scaled."""
    scaled = torch.tensor(own, dtype=torch.float64)
    if tensor.shape != scaled.shape:
        return False
    candidates = [scaled]
    if len(own) > 1:
        candidates += [scaled / scaled[0], (scaled[1] / scaled[0]) ** torch.arange(len(own), dtype=torch.float64)]
    return any(torch.allclose(tensor.double(), each, rtol=_ROUNDING, atol=1e-7) for each in candidates)


def _is_grid(tensor: Tensor, config: DecoderConfig, side: int) -> bool:
    """Whether these are zeros for the condition, then the cosines and sines of row and column."""
    half, index = torch.tensor(config.frequencies, dtype=torch.float64), torch.arange(side * side)
    angle = torch.cat([at[:, None] * half for at in (index // side, index % side)], -1)
    table = torch.stack((angle.cos(), angle.sin()), -1)
    start = tensor.shape[0] - len(table)
    if start < 0 or tensor.shape[1:] != table.shape[1:]:
        return False
    return not tensor[:start].any() and torch.allclose(tensor[start:].double(), table, rtol=0, atol=2 * _ROUNDING)


def _range(tensor: Tensor) -> str:
    values = tensor.flatten().tolist() or [math.nan]
    return f"it holds {tensor.numel()}, from {values[0]:.3g} to {values[-1]:.3g}"
