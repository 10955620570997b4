"""MAR: encoder and decoder, the head, its sampler, and whole pictures from recorded noise."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from golden_specs import TOLERANCE, Case, Replay, relative
from pardec.models.continuous.contracts import ContinuousModel, States
from pardec.models.continuous.diffusion_head import DiffusionHead, MARHead
from pardec.models.continuous.mar import MARBackbone
from pardec.models.continuous.mar import Reader as Read
from pardec.models.load import load_continuous
from pardec.samplers.continuous.contracts import ImageRequest
from pardec.samplers.continuous.loop import decode
from pardec.samplers.ops.denoising_paths import denoise
from pardec.samplers.ops.unmasking import unmasking
from pardec.samplers.registry import resolve


@lru_cache(maxsize=1)
def _model(folder: Path) -> ContinuousModel:
    return load_continuous(folder / "checkpoint", device="cpu", dtype="float32")


def _networks(folder: Path) -> tuple[MARBackbone, MARHead]:
    made = _model(folder).backbone
    assert isinstance(made, Read), "a MAR checkpoint"
    return made.network, made.head


def _named(case: Case, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The case's tensors by the last part of their names."""
    return {name.split(".", 1)[1]: tensors[name] for name in case["tensors"]}


def _labels(case: Case, rows: int) -> Tensor:
    return torch.tensor(case["params"]["labels"] or [-1] * rows)


@torch.inference_mode()
def _forward(case: Case, folder: Path, tensors: dict[str, Tensor]) -> str | None:
    own, (network, _) = _named(case, tensors), _networks(folder)
    states, place, _ = network.encode(own["tokens"], own["mask"] == 0, _labels(case, len(own["mask"])))
    for what, found in (("enc", states), ("z", network.decode(states, place))):
        if (error := relative(found, own[what])) > TOLERANCE:
            return f"{what} differs by {error:.1e}"
    return None


@torch.inference_mode()
def _net(case: Case, folder: Path, tensors: dict[str, Tensor]) -> str | None:
    own, (_, network) = _named(case, tensors), _networks(folder)
    read = network.cond_embed(own["z"])
    if (error := relative(network(own["x"], own["t"], read), own["out"])) > TOLERANCE:
        return f"the head differs by {error:.1e}"
    # Guidance mixes the predicted noise of both halves; each half keeps its own other outputs.
    half = len(read) // 2
    both = network(own["x"][:half].repeat(2, 1), own["t"], read)
    size, scale = network.size, case["params"]["cfg_scale"]
    noise = both[half:, :size] + scale * (both[:half, :size] - both[half:, :size])
    guided = torch.cat((noise.repeat(2, 1), both[:, size:]), 1)
    error = relative(guided, own["out_cfg"])
    return f"the guided head differs by {error:.1e}" if error > TOLERANCE else None


def _sample(case: Case, folder: Path, tensors: dict[str, Tensor]) -> str | None:
    own, p, (_, network) = _named(case, tensors), case["params"], _networks(folder)
    head = DiffusionHead(network, int(p["num_sampling_steps"]))
    if head.schedule.timesteps.tolist() != case["timestep_map"]:
        return f"timesteps {head.schedule.timesteps.tolist()}, expected {case['timestep_map']}"
    if not np.allclose(head.schedule.betas.numpy(), case["betas"], rtol=1e-7):
        return f"betas {head.schedule.betas.tolist()}, expected {case['betas']}"
    with torch.inference_mode():
        read = network.cond_embed(own["z"])
    states = States(read)
    if p["cfg"] != 1:
        cond, uncond = read.chunk(2)
        states = States(cond, uncond, torch.full((len(cond),), float(p["cfg"])))
    count = len(states)
    noise = torch.cat((own["init_noise"][None, :count], own["step_noise"][:, :count])).transpose(0, 1).flatten(1)
    made = denoise(head, states, noise, temperature=p["temperature"])
    error = relative(made, own["out"][:count])
    return f"samples differ by {error:.1e}" if error > TOLERANCE else None


@dataclass(frozen=True)
class Recorded:
    """A source that returns recorded orders and normal numbers, as the uniforms that produce them."""

    keys: Tensor  # [B, S]
    noise: Tensor  # [B, S, T + 1, d]

    def uniform(self, rows: np.ndarray, step: np.ndarray, positions: Tensor, purpose: str, width: int = 0) -> Tensor:
        if purpose == "order":
            return self.keys[torch.from_numpy(rows)]
        found = self.noise[torch.from_numpy(rows)[:, None], positions].flatten(2)
        return torch.special.ndtr(found.double())

    @staticmethod
    def of(case: Case, flat: Tensor, size: int) -> Recorded:
        """Sorts the numbers, which were drawn step after step for the tokens of all rows in raster order.

        Tokens come from the end of a recorded order. With guidance all but the first numbers were drawn twice.
        """
        orders = torch.tensor(case["orders"]).flip(1)
        rows, tokens = orders.shape
        rank = orders.argsort(1)
        groups = unmasking(tokens, case["params"]["num_iter"])
        shapes, at = iter(case["noise_shapes"]), 0
        draws = len(case["noise_shapes"]) // len(groups)
        noise = torch.zeros(rows, tokens, draws, size)
        for start, stop in zip(groups.bounds[:-1], groups.bounds[1:], strict=True):
            these = (rank >= int(start)) & (rank < int(stop))
            for number in range(draws):
                count = next(shapes)[0]
                noise[:, :, number][these] = flat[at : at + count * size].view(count, size)[: int(these.sum())]
                at += count * size
        return Recorded((rank.double() + 0.5) / tokens, noise)


def _picture(case: Case, folder: Path, tensors: dict[str, Tensor]) -> str | None:
    own, p, model = _named(case, tensors), case["params"], _model(folder)
    source = Recorded.of(case, own["noise_flat"], model.head.size)
    labels = tuple(_labels(case, p["bsz"]).tolist())
    request = ImageRequest(labels, source, p["temperature"], None if p["cfg"] == 1 else p["cfg"])
    sampler = resolve(f"mar:steps={p['num_iter']},guidance={p['cfg_schedule']}", "continuous")
    *_, end = decode(model, sampler, request, steps=False)
    made = torch.from_numpy(end.latents).transpose(1, 2).reshape(own["out"].shape)
    error = relative(made, own["out"])
    return f"the picture differs by {error:.1e}" if error > TOLERANCE else None


REPLAYS: dict[str, Replay] = {
    "mar/forward": _forward,
    "mar/diffloss_net": _net,
    "mar/diffloss_sample": _sample,
    "mar/sample_tokens": _picture,
}
