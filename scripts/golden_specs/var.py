"""VAR's own code: the tokenizer's codes and pixels, and the logits of all scales in one forward."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from golden_specs import TOLERANCE, Case, relative
from pardec.models.load import load_scales
from pardec.models.scales.contracts import ScaleModel, Scales
from pardec.models.scales.tokenizer import MultiScaleVQ, phi_index
from pardec.models.scales.tokenizer_files import load_tokenizer
from pardec.models.scales.transformer import VARTransformer


@lru_cache(maxsize=8)
def model(folder: Path, name: str) -> ScaleModel:
    """The checkpoint, in float32 on the CPU."""
    return load_scales(
        folder / "checkpoint" / f"{name}.pth", device="cpu", dtype="float32", decoder=folder / "checkpoint" / "vae.pth"
    )


def tokenizer(case: Case, folder: Path) -> MultiScaleVQ:
    return load_tokenizer(folder / "checkpoint" / "vae.pth", Scales(tuple(case["params"]["patch_nums"])))


def joined(codes: list[list[list[int]]]) -> Tensor:
    """Codes [scale][row] as [rows, L]."""
    return torch.cat([torch.tensor(scale) for scale in codes], 1)


def far(what: str, found: Tensor, expected: Tensor) -> str | None:
    error = relative(found, expected)
    return f"{what} differ by {error:.1e}" if error > TOLERANCE else None


@torch.inference_mode()
def encode(case: Case, folder: Path, tensors: dict[str, Tensor]) -> str | None:
    own = tokenizer(case, folder)
    found = own.encode(tensors[case["image_tensor"]])
    if not torch.equal(found, joined(case["codes"])):
        return f"codes {found.tolist()}, expected {joined(case['codes']).tolist()}"
    return far("pixels", own.decode(found), tensors[case["pixels_tensor"]])


@torch.inference_mode()
def decode(case: Case, folder: Path, tensors: dict[str, Tensor]) -> str | None:
    own, codes = tokenizer(case, folder), joined(case["codes"])
    totals, maps = summed(own, codes)
    if (error := far("inputs", maps, tensors[case["var_input_tensor"]])) is not None:
        return error
    names = case["fhat_tensors"]
    for total, name in zip(totals[-len(names) :], names, strict=True):
        if (error := far(name, total, tensors[name])) is not None:
            return error
    return far("pixels", own.decode(codes), tensors[case["pixels_tensor"]])


def summed(own: MultiScaleVQ, codes: Tensor) -> tuple[list[Tensor], Tensor]:
    """The running sum after each scale, and the inputs of the scales from 1 on, [rows, L - 1, C]."""
    totals, maps, total = [], [], own.start(len(codes))
    for scale, (begin, end) in enumerate(zip(own.scales.starts, own.scales.starts[1:], strict=False)):
        total = own.add(total, codes[:, begin:end], scale)
        totals.append(total)
        if scale + 1 < len(own.scales):
            maps.append(own.map_of(total, scale + 1))
    return totals, torch.cat(maps, 1)


@torch.inference_mode()
def forward_logits(case: Case, folder: Path, tensors: dict[str, Tensor]) -> str | None:
    own, codes, labels = model(folder, case["params"]["model"]), joined(case["codes"]), torch.tensor(case["labels"])
    assert isinstance(own.transformer, VARTransformer), "loaded from its files"
    _, maps = summed(own.quantizer, codes)  # type: ignore[arg-type]
    cache = own.transformer.new_cache(len(labels))
    states = own.transformer.states(labels, maps, cache, first=0, last=len(own.scales) - 1)
    return far("logits", own.transformer.read(states, labels), tensors[case["logits_tensor"]])


def indices(case: Case, *_: object) -> str | None:
    """Which convolution each scale uses."""
    found = list(phi_index(case["params"]["share_quant_resi"], case["params"]["scales"]))
    return None if found == case["table"] else f"{found}, expected {case['table']}"


REPLAYS = {
    "var_phi_index": indices,
    "var_vae_encode": encode,
    "var_vae_decode": decode,
    "var_forward_logits": forward_logits,
}
