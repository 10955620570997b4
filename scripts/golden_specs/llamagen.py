"""LlamaGen: its transformer, its guided loop, its filters and its image tokenizer."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import pardec
from golden_specs import TOLERANCE, Case, Replay, relative
from pardec.models.images.conditioned import Conditioned, Prefix
from pardec.models.images.contracts import Condition
from pardec.models.images.vq import VQ, load_vq
from pardec.models.plan import Plan, Visible
from pardec.samplers.ops.distribution import filter_logits

_EPS = torch.finfo(torch.float32).eps
LOOSE = 1000 * _EPS  # tolerance of a probability: guidance multiplies its logit, a sum of about 1000 rounded terms


def apart(found: Tensor, expected: Tensor) -> float:
    """The largest relative error of probabilities, minus one rounding step at 1."""
    if found.shape != expected.shape:
        return float("inf")
    return float(
        (((found - expected).abs() - _EPS).clamp(min=0) / torch.maximum(found, expected).clamp(min=_EPS)).max()
    )


# --- the image tokenizer ---


@lru_cache(maxsize=1)
def _tokenizer(folder: Path) -> VQ:
    return load_vq(folder / "checkpoint" / "vq_tiny.pt")


def _encode(case: Case, folder: Path, tensors: dict[str, Tensor]) -> str | None:
    """Compares codes exactly, and their rows of the codebook."""
    model = _tokenizer(folder)
    codes = model.encode(tensors[case["image_tensor"]])
    if codes.flatten().tolist() != case["codes"]:
        return f"codes {codes.flatten().tolist()}, expected {case['codes']}"
    error = relative(model.vectors(codes), tensors[case["quant_tensor"]])
    return f"quantized features differ by {error:.1e}" if error > TOLERANCE else None


def _decode(case: Case, folder: Path, tensors: dict[str, Tensor]) -> str | None:
    pictures, _, height, width = case["params"]["shape"]
    codes = torch.tensor(case["codes"]).reshape(pictures, height, width)
    error = relative(_tokenizer(folder).decode(codes), tensors[case["pixels_tensor"]])
    return f"pixels differ by {error:.1e}" if error > TOLERANCE else None


# --- the transformer ---


@lru_cache(maxsize=2)
def model_of(folder: Path, kind: str) -> pardec.Model:
    return pardec.load(folder / "checkpoint" / f"{kind}_tiny.pt", device="cpu", dtype="float32")


def _features(case: Case, tensors: dict[str, Tensor]) -> list[Tensor]:
    """The text encoder's features of each caption, without masked ones, which no query attends to."""
    rows, masks = tensors[case["cond_tensor"]], case.get("emb_masks")
    return list(rows) if masks is None else [row[torch.tensor(mask) > 0] for row, mask in zip(rows, masks, strict=True)]


def arguments(case: Case, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Condition and guidance, as `generate` takes them."""
    p = case["params"]
    asked: dict[str, Any] = {"label": case["cond"]} if p["kind"] == "c2i" else {}
    if p["kind"] == "t2i":
        asked["prompt_embeds"] = _features(case, tensors)
    if p["cfg_scale"] > 1:
        interval = p.get("cfg_interval", -1)
        asked |= {"cfg": p["cfg_scale"], "cfg_interval": None if interval < 0 else interval}
    return asked


def _forward_logits(case: Case, folder: Path, tensors: dict[str, Tensor]) -> str | None:
    """The whole sequence in one forward, condition included; the class after the last one is the null class."""
    model = model_of(folder, case["params"]["kind"]).language_model
    imaging = model.imaging
    assert imaging is not None, "it is a model of pictures"
    if case["cond"] is not None:
        said = [label < imaging.classes for label in case["cond"]]
        made = imaging.prefix([Condition(label=min(label, imaging.classes - 1)) for label in case["cond"]])
        assert made.uncond is not None, "classes can be guided"
        made = Prefix(tuple(made.cond[row] if known else made.uncond[row] for row, known in enumerate(said)))
    else:
        made = imaging.prefix([Condition(features=row) for row in _features(case, tensors)])
    places, ids = made.lengths, torch.tensor(case["input_ids"])
    stack = replace(model, decoder=Conditioned(model.decoder, made, places))
    tokens = torch.cat((torch.full((len(ids), places[0]), -1), ids), 1)
    with torch.inference_mode():
        found = stack.run(Plan.full(tokens, Visible.causal()), stack.new_cache(*tokens.shape)).logits()
    error = relative(found, tensors[case["logits_tensor"]])
    return f"logits differ by {error:.1e}" if error > TOLERANCE else None


class _Heard:
    """Stores the last outputs of both halves of a guided forward while open; prompts may take several forwards."""

    def __init__(self, model: pardec.Model) -> None:
        self.stack: Any = model.language_model.decoder
        self.steps: list[Tensor] = []

    def __enter__(self) -> _Heard:
        forward = self.stack.forward

        def heard(plan: Plan, cache: Any = None) -> Any:
            made = forward(plan, cache)
            rows = torch.arange(plan.batch) if plan.rows is None else plan.rows
            if not self.steps or not self.steps[-1][rows].isnan().any():
                self.steps.append(torch.full((cache.batch, made.logits().shape[-1]), torch.nan))
            self.steps[-1][rows] = made.logits()[:, -1]
            return made

        self.stack.forward = heard
        return self

    def __exit__(self, *_: object) -> None:
        del self.stack.forward


def _greedy(case: Case, folder: Path, tensors: dict[str, Tensor]) -> str | None:
    """Codes, forwards, and the raw logits of both halves at each step."""
    model = model_of(folder, case["params"]["kind"])
    with _Heard(model) as heard:
        result = model.generate(sampler="sequential", **arguments(case, tensors))
    if result.tokens != case["output_ids"]:
        return f"codes {result.tokens}, expected {case['output_ids']}"
    if set(result.nfe) != {case["nfe"]}:
        return f"{result.nfe} forwards, expected {case['nfe']}"
    if "logits_tensor" not in case:
        return None
    expected = tensors[case["logits_tensor"]]
    error = relative(torch.stack(heard.steps, 1)[:, : expected.shape[1]], expected)
    return f"logits differ by {error:.1e}" if error > TOLERANCE else None


def _filters(case: Case, folder: Path, tensors: dict[str, Tensor]) -> str | None:
    p = case["params"]
    logits, top_p = tensors[case["logits_tensor"]], p["top_p"] if p["top_p"] < 1 else None
    top_k = min(p["top_k"], logits.shape[-1]) or None
    kept = filter_logits(logits[None], temperature=p["temperature"], top_k=top_k, top_p=top_p, order="top_k")
    found, expected = kept[0].softmax(-1), tensors[case["probs_tensor"]]
    if found.argmax(-1).tolist() != case["argmax"]:
        return f"argmax {found.argmax(-1).tolist()}, expected {case['argmax']}"
    error = apart(found, expected)
    return f"probabilities differ by {error:.1e}" if error > LOOSE else None


REPLAYS: dict[str, Replay] = {
    "vq_encode": _encode,
    "vq_decode": _decode,
    "llamagen/forward_logits": _forward_logits,
    "greedy_generate": _greedy,
    "top_k_top_p": _filters,
}
