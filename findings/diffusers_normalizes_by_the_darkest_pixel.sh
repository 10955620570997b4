#!/usr/bin/env bash
# diffusers: VaeImageProcessor.preprocess brings images from [0, 1] to the [-1, 1] that a VAE is given. Which of the two
# a tensor has is read off its smallest value. One value of -1e-7, from a resize or a round trip, and a whole batch in
# [0, 1] is passed on as it is, grey and pale; an image in [-1, 1] without a dark pixel is normalized again. In a list,
# the images of one decide for the others. A NumPy or PyTorch image in uint8 gets values up to 509, which a PIL image of
# the same pixels does not. A FutureWarning is all that is said of the first, and nothing of the others.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 diffusers==0.42.1 pillow==13.0.0
OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 "$folder/venv/bin/python" -W ignore - <<'PY'
import sys

import diffusers
import numpy as np
import torch
from diffusers.image_processor import VaeImageProcessor
from PIL import Image

processor = VaeImageProcessor()
white = torch.ones(1, 3, 16, 16)
image = torch.linspace(0, 1, 256).view(1, 1, 16, 16).expand(1, 3, 16, 16).clone()
almost = image.clone()
almost[0, 0, 0, 0] = -1e-7
bytes_ = np.full((16, 16, 3), 200, np.uint8)
cases = {
    "in [0, 1]": (image, (-1, 1)),
    "in [0, 1] but for one value of -1e-7": (almost, (0, 1)),
    "in [-1, 1]": (image * 2 - 1, (-1, 1)),
    "in [-1, 1], all values 0.2": (white * 0.2, (-0.6, -0.6)),
    "a list: all values 0.2 in [0, 1], and one image in [-1, 1]": ([white[0] * 0.2, image[0] * 2 - 1], (0.2, 0.2)),
    "PIL, all pixels 200": (Image.fromarray(bytes_), (0.569, 0.569)),
    "NumPy, uint8, all pixels 200": (bytes_[None], (399, 399)),
}
print("diffusers", diffusers.__version__, "torch", torch.__version__)
print("guess: what is normalized depends on the type and the arguments, and not on a pixel")
wrong = False
for name, (given, (low, high)) in cases.items():
    first = processor.preprocess(given)[0]
    seen = float(first.min()), float(first.max())
    print(f"{name}: the first image is given as {seen[0]:.3g} to {seen[1]:.3g}")
    wrong |= abs(seen[0] - low) > 1e-3 or abs(seen[1] - high) > 1e-3
sys.exit(wrong)
PY
