#!/usr/bin/env bash
# torchvision: a picture that a model has drawn has values a little above 1, from a decoder or a bicubic resize.
# to_pil_image and to_dtype(scale=True), its two ways to 8 bits, do not clamp them: the number wraps around, and the
# whitest pixels become black, and those below 0 white. to_dtype does so from 1.001 on, to_pil_image from 1.004. Both
# cut off in place of rounding, and in bfloat16 to_dtype returns half of all 256 levels as another one. save_image of
# the same package clamps and rounds: the picture that was saved for a look is not the one that was passed on.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 torchvision==0.28.0
"$folder/venv/bin/pip" install -q --disable-pip-version-check pillow==13.0.0 numpy==2.4.6
OMP_NUM_THREADS=1 "$folder/venv/bin/python" - <<'PY'
import io
import sys

import numpy
import torch

try:
    import torchvision
except (
    RuntimeError
):  # built for a GPU, beside a PyTorch that is not: its own operators are missing, and not needed here
    library = torch.library.Library("torchvision", "DEF")
    for name in ("roi_align", "roi_pool", "ps_roi_align", "ps_roi_pool", "deform_conv2d"):
        library.define(f"{name}(Tensor x) -> Tensor")
        library.define(f"_{name}_backward(Tensor x) -> Tensor")
    library.define("nms(Tensor x) -> Tensor")
    library.define("qnms(Tensor x) -> Tensor")
    import torchvision
from PIL import Image
from torchvision.transforms.v2 import functional
from torchvision.utils import save_image


def pil(values):
    return numpy.array(functional.to_pil_image(values.view(1, 1, -1)))[0].tolist()


def dtype(values):
    return functional.to_dtype(values.view(1, 1, -1), torch.uint8, scale=True).flatten().tolist()


def saved(values):
    save_image(values.view(1, 1, -1), file := io.BytesIO(), format="png")
    return numpy.array(Image.open(file))[0, :, 0].tolist()


values = torch.tensor([-0.01, 0.0, 0.5, 1.0, 1.002, 1.01])
levels = torch.arange(256)
print("torchvision", torchvision.__version__, "torch", torch.__version__)
print("guess: values", [round(value, 3) for value in values.tolist()], "become [0, 0, 128, 255, 255, 255]")
seen = {way.__name__: way(values) for way in (pil, dtype, saved)}
for name, pixels in seen.items():
    print(f"seen: {name}: {pixels}")
wrong = sum(read != level for read, level in zip(dtype((levels / 255).to(torch.bfloat16)), levels.tolist()))
print(f"seen: of 256 levels in bfloat16, to_dtype returns {wrong} as another one")
right = {"dtype": [254, 0, 127, 255, 0, 2], "pil": [254, 0, 127, 255, 255, 1], "saved": [0, 0, 128, 255, 255, 255]}
sys.exit(seen != right or wrong < 64)
PY
