"""Generates images from captions with several samplers and puts them on one sheet.

    python examples/image_sheet.py --out sheet.png

Prints how many forwards each sampler took for the 144 tokens of an image. Each row of the sheet is one sampler, each
column one caption; all samplers get the same seeds.
"""

from __future__ import annotations

import argparse

from PIL import Image

import pardec

CAPTIONS = [
    "a large green triangle at the top on white",
    "a small red circle left of a large blue square on grey",
    "a small yellow circle in the middle on black",
]
SAMPLERS = ["sequential", "sjd", "sjd+lantern:k=32,delta=0.2"]
SCALE = 4  # pixels of the sheet for one of the image


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default="sheet.png")
    parser.add_argument("--captions", type=int, default=len(CAPTIONS), help="how many of the captions to use")
    arguments = parser.parse_args()

    model = pardec.load("tiny-llamagen")
    captions = CAPTIONS[: arguments.captions]
    rows = []
    for sampler in SAMPLERS:
        result = model.generate(captions, sampler=sampler, temperature=1.0, top_k=64, cfg=2.0, seed=0)
        assert result.images is not None
        rows.append(result.images)
        print(f"{sampler}: {sum(result.nfe) / len(result.nfe):.1f} forwards per image")

    width, height = (SCALE * side for side in rows[0][0].size)
    sheet = Image.new("RGB", (width * len(captions), height * len(rows)))
    for down, images in enumerate(rows):
        for across, image in enumerate(images):
            sheet.paste(image.resize((width, height), Image.Resampling.NEAREST), (across * width, down * height))
    sheet.save(arguments.out)


if __name__ == "__main__":
    main()
