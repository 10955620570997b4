"""Bounds what exact speculation can save a model of token maps.

    python scripts/next_scale_bound.py tiny-var tiny-var-draft

A small model would draft the next maps, and the large one verify them in one block-causal forward. The codes of a map
are drawn independently given the maps before it, so a code is tested alone, and no coupling keeps more of them than the
maximal one. Maps after the first changed one have to be drafted and verified again:

    a code stays with probability c_i = sum over codes of min(p_i, q_i);  a map with a_s = product of c_i
    forwards of the large model, with any number of maps drafted ahead:  at least 1 + sum of (1 - a_s), s < S - 1

The positions that the large model computes are never fewer than without speculation: those of all maps, and in addition
those that were drafted after a changed map. The means are over maps that the large model draws.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from pardec.models.load import load_scales  # noqa: E402
from pardec.models.scales.contracts import ScaleModel, check_pair  # noqa: E402
from pardec.samplers.ops.inverse_cdf import sample  # noqa: E402
from pardec.samplers.rng import Keyed  # noqa: E402
from pardec.samplers.scales.contracts import ScaleContext, ScaleRequest  # noqa: E402
from pardec.samplers.scales.forward import ScaleForward  # noqa: E402
from pardec.samplers.scales.state import MapState  # noqa: E402
from pardec.samplers.stopwatch import Stopwatch  # noqa: E402


@torch.inference_mode()
def kept(large: ScaleModel, small: ScaleModel, labels: tuple[int, ...], cfg: float | None) -> list[tuple[float, float]]:
    """For each map: the mean probability that a drafted code stays, and that all codes of the map stay."""
    check_pair(small, large)
    request = ScaleRequest(labels, Keyed(tuple(range(len(labels)))), cfg=cfg, refiner=small)
    maps = MapState(large, request)
    context = ScaleContext(large, request, maps, Stopwatch(large.device))
    forwards, found = (ScaleForward(context, large), ScaleForward(context, small, "refiner")), []
    while not maps.complete:
        p, q = (forward.next_logits()[0].double().softmax(-1) for forward in forwards)
        stays = torch.minimum(p, q).sum(-1)  # [n, n_s]
        found.append((float(stays.mean()), float(stays.prod(-1).mean())))
        codes = sample(p, maps.uniforms())
        maps.commit(codes, p.gather(-1, codes[..., None])[..., 0], p.max())
    return found


def least_forwards(found: list[tuple[float, float]]) -> float:
    """The bound of the large model's forwards per image."""
    return 1 + sum(1 - whole for _, whole in found[:-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("large")
    parser.add_argument("small")
    parser.add_argument("--images", type=int, default=32, help="images, one per class in turn")
    parser.add_argument("--cfg", type=float, help="guidance, as for generate")
    given = parser.parse_args()
    large, small = (load_scales(name, device="cpu") for name in (given.large, given.small))
    labels = tuple(image % large.transformer.classes for image in range(given.images))
    found = kept(large, small, labels, given.cfg)
    for side, (code, whole) in zip(large.scales.sides, found, strict=True):
        print(f"{side} x {side}: a code stays with {code:.3f}, the map with {whole:.4f}")
    print(f"at least {least_forwards(found):.2f} forwards of {len(found)}")


if __name__ == "__main__":
    main()
