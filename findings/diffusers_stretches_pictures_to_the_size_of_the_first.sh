#!/usr/bin/env bash
# diffusers: a list of pictures of several sizes is no error for the image processor that each pipeline has for its
# inputs: all are stretched to the size of the first, in both directions apart, and the others' shapes are lost. The
# order of a list decides what a model sees: a wide picture after a square one is squeezed, and a large one after a
# small one is shrunk. Image to image and inpainting do so, and code that encodes latents with it, silently. Tensors and
# arrays of several sizes are refused. Each picture alone keeps its size, to the next eight pixels below.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 diffusers==0.42.1 pillow==13.0.0
HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - <<'PY'
import sys

import diffusers
import numpy
import torch
from diffusers.image_processor import VaeImageProcessor
from PIL import Image, ImageDraw

square, wide = Image.new("RGB", (64, 64)), Image.new("RGB", (256, 128))
ImageDraw.Draw(wide).ellipse((64, 0, 191, 127), fill="white")  # a circle
processor = VaeImageProcessor(vae_scale_factor=8)


def spans(batch, index):
    """Width and height of what is white in a picture of a batch."""
    white = batch[index, 0] > 0
    return int(white.any(0).sum()), int(white.any(1).sum())


def refused(pictures):
    try:
        processor.preprocess(pictures)
    except (RuntimeError, ValueError):
        return True
    return False


alone, first, second = (processor.preprocess(pictures) for pictures in (wide, [wide, square], [square, wide]))
arrays = [numpy.asarray(picture, numpy.float32) / 255 for picture in (square, wide)]
others = refused(arrays), refused([torch.from_numpy(array).permute(2, 0, 1) for array in arrays])
sizes = [list(batch.shape[:1] + batch.shape[2:]) for batch in (alone, first, second)]
circles = [spans(alone, 0), spans(first, 0), spans(second, 1)]
print("diffusers", diffusers.__version__, "torch", torch.__version__)
print("guess: pictures of two sizes are refused as a batch, whether they are pictures, arrays or tensors")
print("arrays and tensors:", *("refused" if one else "taken" for one in others))
print("pictures: alone, wide first, square first:", *sizes, "with a circle of", *circles)
sys.exit(
    not (
        others == (True, True)
        and sizes == [[1, 128, 256], [2, 128, 256], [2, 64, 64]]
        and circles[0] == circles[1] == (128, 128)
        and circles[2][0] < 36 < 60 < circles[2][1]
    )
)
PY
