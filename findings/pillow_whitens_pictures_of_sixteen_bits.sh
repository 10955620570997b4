#!/usr/bin/env bash
# Pillow: a grey PNG of 16 bits, as scientific and medical data sets have them, is read with all its values. convert("L")
# and convert("RGB"), the usual first step of a preprocessing, do not scale them to 8 bits: every value above 255 becomes
# 255, and a picture that a viewer shows in full is white. A PNG of 16 bits in colour is scaled when it is opened.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check pillow==13.0.0 numpy==2.4.6
"$folder/venv/bin/python" - "$folder" <<'PY'
import struct
import sys
import zlib

import numpy as np
import PIL
from PIL import Image

levels = [0, 255, 4096, 32768, 65535]


def png(path: str, colour: int) -> None:
    """A picture of one row with 16 bits per channel: grey (0) or colour (2)."""
    channels = 3 if colour == 2 else 1
    row = b"\0" + np.repeat(np.array(levels, ">u2"), channels).tobytes()
    parts = {b"IHDR": struct.pack(">IIBBBBB", len(levels), 1, 16, colour, 0, 0, 0), b"IDAT": zlib.compress(row), b"IEND": b""}
    with open(path, "wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n")
        for name, data in parts.items():
            file.write(struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)))


grey, colour = f"{sys.argv[1]}/grey.png", f"{sys.argv[1]}/colour.png"
png(grey, 0)
png(colour, 2)
print("Pillow", PIL.__version__)
print("guess: both become 0 1 16 128 255 (within one), the high bytes")
opened = Image.open(grey)
shown = {
    "grey as it is": (opened.mode, np.asarray(opened)[0].tolist()),
    "grey, convert L": ("L", np.asarray(opened.convert("L"))[0].tolist()),
    "grey, convert RGB": ("RGB", np.asarray(opened.convert("RGB"))[0, :, 0].tolist()),
    "colour, convert RGB": ("RGB", np.asarray(Image.open(colour).convert("RGB"))[0, :, 0].tolist()),
}
for name, (mode, values) in shown.items():
    print(f"{name}: {mode} {values}")
whitened = [0, 255, 255, 255, 255]
expected = [levels, whitened, whitened]
sys.exit([values for _, values in shown.values()][:3] != expected or shown["colour, convert RGB"][1][3] not in (127, 128))
PY
