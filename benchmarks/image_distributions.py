"""How sure a model of pictures is of the next code, by what the cell shows: what relaxed acceptances have to relax.

    python benchmarks/image_distributions.py [-n 100] [--markdown benchmarks/image_distributions.md]

True pictures of held-out captions are encoded, and the law of each code behind the true ones before it is looked at, as
the model says it, and as it is drawn from with the checkpoint's own guidance and temperature. A cell is `inside` a
shape or `ground`; of both, those beside the other kind count as `edge`.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import pardec
from pardec.images.scenes import captions, parse
from pardec.models.images.conditioned import Conditioned
from pardec.models.images.contracts import Condition
from pardec.models.images.vq import to_pixels
from pardec.models.images.vq_files import load_vq
from pardec.models.plan import Plan, Visible

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

from image_training.corpus import GROUND, shown_by  # noqa: E402
from image_training.data import fresh  # noqa: E402

REGIONS = ("ground", "edge", "inside")
SEED = 7


def regions(shown: np.ndarray, side: int) -> np.ndarray:
    """[B, cells] which of REGIONS each cell is in, from what it shows."""
    inside = (shown != GROUND).reshape(-1, side, side)
    wide = np.pad(inside, ((0, 0), (1, 1), (1, 1)), mode="edge")
    beside = [wide[:, 1 + dy : side + 1 + dy, 1 + dx : side + 1 + dx] for dy, dx in ((0, 1), (0, -1), (1, 0), (-1, 0))]
    edge = np.any([other != inside for other in beside], axis=0)
    return np.where(edge, 1, np.where(inside, 2, 0)).reshape(len(shown), -1)


@torch.inference_mode()
def distributions(model: pardec.Model, caption: str, codes: Tensor, cfg: float | None) -> Tensor:
    """Logits [cells, V] of each of `codes` [cells] behind the ones before it."""
    held = model.language_model
    assert held.imaging is not None, "a model of pictures"
    prefix = held.imaging.prefix([Condition(text=caption)])
    (places,) = prefix.lengths
    behind = replace(held, decoder=Conditioned(held.decoder, prefix, [places], cfg=cfg))
    fed = torch.cat((torch.full((1, places), -1), codes[None, :-1]), 1)
    plan = Plan.full(fed, Visible.causal())
    return behind.run(plan, behind.new_cache(1, fed.shape[1])).logits()[0, places - 1 :]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="tiny-llamagen")
    parser.add_argument("-n", type=int, default=100, help="captions")
    parser.add_argument("--markdown", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    model = pardec.load(given.model, device="cpu")
    imaging = model.language_model.imaging
    assert imaging is not None, "a model of pictures"
    settings, vq = imaging.defaults, load_vq("tiny-vq")
    said = captions("heldout", given.n, SEED)
    pictures = fresh(said, SEED)
    where = regions(shown_by([parse(caption) for caption in said], pictures, vq.shape.downsample), imaging.layout.rows)
    kinds = {"as the model says it": (None, 1.0), "as it is drawn from": (settings["cfg"], settings["temperature"])}
    lines = ["| law | cells | median top-1 | median entropy, nats | cells of them |", "|---|---|---|---|---|"]
    for name, (cfg, temperature) in kinds.items():
        top, entropy = [], []
        for caption, picture in zip(said, pictures, strict=True):
            codes = vq.encode(to_pixels(picture[None])).flatten()
            distribution = (distributions(model, caption, codes, cfg) / temperature).softmax(-1)
            top.append(distribution.amax(-1).numpy())
            entropy.append(-torch.special.xlogy(distribution, distribution).sum(-1).numpy())
        for number, region in enumerate(REGIONS):
            here = where == number
            shares = np.median(np.stack(top)[here]), np.median(np.stack(entropy)[here])
            lines.append(f"| {name} | {region} | {shares[0]:.2f} | {shares[1]:.2f} | {here.mean():.0%} |")
    text = "\n".join(lines)
    print(text)
    if given.markdown:
        head = f"`python benchmarks/image_distributions.py -n {given.n}` on {model.name}, drawn with "
        drawn = ", ".join(f"{key} {value:g}" for key, value in settings.items())
        given.markdown.write_text(f"# How sure a model of pictures is\n\n{head}{drawn}.\n\n{text}\n")


if __name__ == "__main__":
    main()
