"""Measures how certain a model of image codes is of the next code, by the code's region of the image.

    python benchmarks/image_distributions.py [-n 100] [--markdown benchmarks/image_distributions.md]

Reference images of held-out captions are encoded; for each code, the distribution given the true codes before it is
computed without guidance at temperature 1, and as it is sampled from with the checkpoint's guidance and temperature.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import pardec
from pardec.images.scenes import captions, parse
from pardec.models.images.conditioned import Conditioned
from pardec.models.images.contracts import Condition
from pardec.models.images.vq import load_vq, to_pixels
from pardec.models.plan import Plan, Visible

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

from image_training.corpus import GROUND, shown_by  # noqa: E402
from image_training.data import fresh  # noqa: E402

REGIONS = ("background", "edge", "inside a shape")
SEED = 7
PAGE = """# How certain an image model is of the next code

This page measures how certain {model}, an autoregressive model of image codes, is of the next code. Where it is
uncertain, a relaxed acceptance rule has room to accept more drafts. For {count} held-out captions, reference images are
encoded, and the model predicts each code from the true codes before it. It is made by
`python benchmarks/image_distributions.py -n {count}` on one thread of a CPU.
`as sampled` is with {settings}.

{result}
A code belongs to the background or to the inside of a shape; those next to a code of the other kind count as edge.

{table}
"""


def regions(contents: np.ndarray, side: int) -> np.ndarray:
    """[B, codes]: the region of each code, as an index into `REGIONS`."""
    inside = (contents != GROUND).reshape(-1, side, side)
    padded = np.pad(inside, ((0, 0), (1, 1), (1, 1)), mode="edge")
    shifts = (0, 1), (0, -1), (1, 0), (-1, 0)
    neighbours = [padded[:, 1 + dy : side + 1 + dy, 1 + dx : side + 1 + dx] for dy, dx in shifts]
    edge = np.any([neighbour != inside for neighbour in neighbours], axis=0)
    return np.where(edge, 1, np.where(inside, 2, 0)).reshape(len(contents), -1)


@torch.inference_mode()
def next_code_logits(model: pardec.Model, caption: str, codes: Tensor, cfg: float | None) -> Tensor:
    """Logits [S, V] of each of `codes` [S], given those before it."""
    network = model.language_model
    assert network.imaging is not None, "an image model"
    prefix = network.imaging.prefix([Condition(text=caption)])
    (length,) = prefix.lengths
    conditioned = replace(network, decoder=Conditioned(network.decoder, prefix, [length], cfg=cfg))
    tokens = torch.cat((torch.full((1, length), -1), codes[None, :-1]), 1)
    plan = Plan.full(tokens, Visible.causal())
    return conditioned.run(plan, conditioned.new_cache(1, tokens.shape[1])).logits()[0, length - 1 :]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="tiny-llamagen")
    parser.add_argument("-n", type=int, default=100, help="captions")
    parser.add_argument("--markdown", type=Path, help="file to write the page to")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = pardec.load(options.model, device="cpu")
    imaging = model.language_model.imaging
    assert imaging is not None, "an image model"
    settings, vq = imaging.defaults, load_vq("tiny-vq")
    texts = captions("heldout", options.n, SEED)
    images = fresh(texts, SEED)
    contents = shown_by([parse(text) for text in texts], images, vq.shape.downsample)
    region_of = regions(contents, imaging.layout.rows)
    guided = settings["cfg"], settings["temperature"]
    distributions = {"without guidance, temperature 1": (None, 1.0), "as sampled": guided}
    lines = [
        "| distribution | region | median top-1 | median entropy, nats | share of codes |",
        "|---|---|---|---|---|",
    ]
    result = ""
    for name, (cfg, temperature) in distributions.items():
        top, entropy = [], []
        for text, image in zip(texts, images, strict=True):
            codes = vq.encode(to_pixels(image[None])).flatten()
            probs = (next_code_logits(model, text, codes, cfg) / temperature).softmax(-1)
            top.append(probs.amax(-1).numpy())
            entropy.append(-torch.special.xlogy(probs, probs).sum(-1).numpy())
        medians = []
        for index, region in enumerate(REGIONS):
            here = region_of == index
            medians.append(np.median(np.stack(top)[here]))
            figures = f"{medians[-1]:.2f} | {np.median(np.stack(entropy)[here]):.2f} | {here.mean():.0%}"
            lines.append(f"| {name} | {region} | {figures} |")
        result = summary(medians)
    table = "\n".join(lines)
    print(table)
    if options.markdown:
        sampling = ", ".join(f"{key} {value:g}" for key, value in settings.items())
        options.markdown.write_text(
            PAGE.format(model=model.name, count=options.n, settings=sampling, result=result, table=table)
        )


def summary(medians: Sequence[float]) -> str:
    """The result in words, from the median top-1 probabilities of the regions as sampled."""
    ground, _, inside = medians
    return (
        f"As sampled, the median probability of the likeliest code is {ground:.2f} in the background and {inside:.2f} "
        "inside shapes."
    )


if __name__ == "__main__":
    main()
