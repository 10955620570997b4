"""VAR and CoDe: whole pictures from recorded uniforms, seeded ones, and filters."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

import pardec
from golden_specs import TOLERANCE, Case, Pure, Replay, load, relative
from pardec.models.images.contracts import Imaging
from pardec.models.scales.contracts import ScaleModel
from pardec.samplers.ops.distribution import filter_logits
from pardec.samplers.ops.inverse_cdf import sample
from pardec.samplers.scales.methods import map_decoding as _maps


@dataclass(frozen=True)
class Recorded:
    """A source that returns recorded uniforms: scale by scale, then row by row, then in raster order."""

    values: Tensor  # [B, L]

    def uniform(self, rows: np.ndarray, step: np.ndarray, positions: Tensor, purpose: str, width: int = 0) -> Tensor:
        return self.values[torch.from_numpy(rows)[:, None], positions]

    @staticmethod
    def of(flat: Tensor, rows: int, sides: list[int]) -> Recorded:
        parts = flat.double().split([rows * side * side for side in sides])
        return Recorded(torch.cat([part.view(rows, -1) for part in parts], 1))


def _list(values: list[Any]) -> str:
    """A value for each scale, as specs write it."""
    return "/".join(f"{value}x{len(list(run))}" for value, run in groupby(values))


def _labels(case: Case, classes: int) -> list[int]:
    return [-1 if label == classes else label for label in case["labels"]]


def _difference(model: pardec.Model, case: Case, tensors: dict[str, Tensor], **arguments: Any) -> str | None:
    """The first difference between a recorded picture and the picture of `generate`."""
    p, network, imaging = case["params"], model.network, model.imaging
    assert isinstance(network, ScaleModel)
    assert imaging is not None
    labels, codes = _labels(case, imaging.classes), torch.cat([torch.tensor(each) for each in case["codes"]], 1)
    if name := case.get("uniforms_tensor"):
        arguments["source"] = Recorded.of(tensors[name], len(labels), p["patch_nums"])
    result = model.generate(label=labels, cfg=p["cfg"], top_p=p["top_p"] or None, **arguments)
    if result.tokens != codes.tolist():
        wrong = (torch.tensor(result.tokens) != codes).nonzero()
        return f"{len(wrong)} codes differ, the first at {wrong[0].tolist()}"
    if (n := case.get("nfe")) and [a + b for a, b in zip(result.nfe, result.draft_forwards, strict=True)] != [n] * len(
        labels
    ):
        return f"{result.nfe} and {result.draft_forwards} forwards, expected {n}"
    if (lengths := case.get("forward_input_lens")) and [len(fed) for fed in result.trace.fed[0]] != lengths:
        return f"fed {[len(fed) for fed in result.trace.fed[0]]}, expected {lengths}"
    return _pictures(network, imaging, codes, case, tensors)


def _pictures(
    network: ScaleModel, imaging: Imaging, codes: Tensor, case: Case, tensors: dict[str, Tensor]
) -> str | None:
    """The running sums and pixels of the codes."""
    starts, totals = network.scales.starts, [network.quantizer.start(len(codes))]
    for scale in range(len(network.scales)):
        totals.append(network.quantizer.add(totals[-1], codes[:, starts[scale] : starts[scale + 1]], scale))
    at = {"fhat_tensor": -1, "draft_fhat_tensor": case.get("drafter_forwards", -1)}
    found = {name: totals[index] for name, index in at.items()}
    maps = [network.quantizer.map_of(total, scale) for scale, total in enumerate(totals[1:-1], 1)]
    found["draft_hub_tensor"] = torch.cat(maps[: case.get("drafter_forwards")], 1)
    found["pixels_tensor"] = (imaging.decode(codes) + 1) / 2
    for name, values in found.items():
        if name in case and (error := relative(values, tensors[case[name]])) > TOLERANCE:
            return f"{name.removesuffix('_tensor')} differs by {error:.1e}"
    return None


@torch.inference_mode()
def _var(case: Case, folder: Path, tensors: dict[str, Tensor]) -> str | None:
    p, model = case["params"], load(folder / "checkpoint" / f"{case['params']['model']}.pth")
    more = {"top_k": p["top_k"]} if p["top_k"] else {}
    if (difference := _difference(model, case, tensors, **more)) is not None:
        return difference
    return _logits(model, case, tensors) if "raw_logits_tensors" in case else None


def _logits(model: pardec.Model, case: Case, tensors: dict[str, Tensor]) -> str | None:
    """Both halves' logits of the scales whose logits are recorded, from the recorded codes."""
    network = model.network
    assert isinstance(network, ScaleModel)
    labels = torch.tensor([*case["labels"], *[network.transformer.classes] * len(case["labels"])])
    total, cache = network.quantizer.start(len(labels)), network.transformer.new_cache(len(labels))
    for scale, (codes, name) in enumerate(zip(case["codes"], case["raw_logits_tensors"], strict=False)):
        empty = torch.zeros(len(labels), 0, network.quantizer.channels)
        maps = network.quantizer.map_of(total, scale) if scale else empty
        logits = network.transformer(labels, maps, cache, first=scale, last=scale)
        if (error := relative(logits, tensors[name])) > TOLERANCE:
            return f"scale {scale}: logits differ by {error:.1e}"
        total = network.quantizer.add(total, torch.tensor(codes).repeat(2, 1), scale)
    return None


@torch.inference_mode()
def _code(case: Case, folder: Path, tensors: dict[str, Tensor]) -> str | None:
    p, files = case["params"], folder / "checkpoint"
    model, refiner = load(files / f"{p['drafter']}.pth"), files / f"{p['refiner']}.pth"
    lists = f"temperatures={_list(p['temp'])},top_ks={_list(p['top_k'])}"
    spec = f'code:refiner="{refiner}",steps={p["draft_steps"]},{lists}'
    if (difference := _difference(model, case, tensors, sampler=spec)) is not None:
        return difference
    return _entry(load(refiner), case, tensors) if "refiner_first_logits_tensor" in case else None


def _entry(refiner: pardec.Model, case: Case, tensors: dict[str, Tensor]) -> str | None:
    """The logits of the refiner's first scale, from one block-causal forward; the record has those of all scales."""
    network, steps = refiner.network, case["params"]["draft_steps"]
    assert isinstance(network, ScaleModel)
    labels = torch.tensor([*case["labels"], *[network.transformer.classes] * len(case["labels"])])
    hub = tensors[case["draft_hub_tensor"]].repeat(2, 1, 1)
    logits = network.transformer(labels, hub, network.transformer.new_cache(len(labels)), first=0, last=steps)
    expected = tensors[case["refiner_first_logits_tensor"]][:, -network.scales.sizes[steps] :]
    error = relative(logits, expected)
    return f"the refiner's first logits differ by {error:.1e}" if error > TOLERANCE else None


@torch.inference_mode()
def _seeded(case: Case, folder: Path, tensors: dict[str, Tensor]) -> str | None:
    """The authors draw a table of exponentials per scale, and take the argmax of p/e; the rest is `generate`."""
    p, model = case["params"], load(folder / "checkpoint" / f"{case['params']['model']}.pth")
    generator = torch.Generator().manual_seed(p["g_seed"])

    def draw(probs: Tensor, _: Tensor) -> Tensor:
        table = torch.empty_like(probs.flatten(0, 1)).exponential_(generator=generator)
        return (probs.flatten(0, 1) / table).argmax(1).view(probs.shape[:2])

    with patch.object(_maps, "sample", draw):
        return _difference(model, case, tensors, **({"top_k": p["top_k"]} if p["top_k"] else {}))


def _filter(case: Case, _: Path, tensors: dict[str, Tensor]) -> str | None:
    p, logits = case["params"], tensors[case["logits_tensor"]]
    probs = filter_logits(
        logits, temperature=0, top_k=p["top_k"] or None, top_p=p["top_p"] or None, order="top_k"
    ).softmax(-1)
    if (error := relative(probs, tensors[case["probs_tensor"]])) > TOLERANCE:
        return f"probabilities differ by {error:.1e}"
    picks = sample(probs, torch.tensor(case["uniforms"], dtype=torch.float64).view(probs.shape[:-1])).tolist()
    return None if picks == case["picks"] else f"{picks}, expected {case['picks']}"


PURE: dict[str, Pure] = {}
REPLAYS: dict[str, Replay] = {
    "var_generate": _var,
    "var_generate_seeded": _seeded,
    "var_top_k_top_p": _filter,
    "code_generate": _code,
}
