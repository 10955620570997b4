#!/usr/bin/env bash
# PyTorch: with one seed, the noise of the first picture of a batch is expected to be that of the picture alone, and
# torch.rand keeps to it. torch.randn on a CPU does for sizes that are multiples of 16: of any other the last 16 numbers
# are drawn anew, and fewer than 16 in all are made in another way. Rows of 75 values differ alone and in a batch, those
# of 64 do not, and a test with powers of two finds nothing. Nor is it one stream: two draws of 20 are not one of 40.
# The same seed in float64 gives the same noise below 16 numbers and other noise from 16 on.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy==2.4.6
OMP_NUM_THREADS=1 "$folder/venv/bin/python" - <<'PY'
import sys

import torch


def noise(*shape, draw=torch.randn, dtype=torch.float32):
    return draw(shape, generator=torch.Generator().manual_seed(0), dtype=dtype).double()


def kept(size, draw):
    """How many of the first row's numbers are the same alone and as the first of a batch of three."""
    return torch.isclose(noise(1, size, draw=draw)[0], noise(3, size, draw=draw)[0], atol=1e-5).sum().item()


def by_type(size):
    """How many numbers are the same in float32 and in float64."""
    return torch.isclose(noise(size), noise(size, dtype=torch.float64), atol=1e-5).sum().item()


print("torch", torch.__version__)
print("guess: a row is the same alone and in a batch; of an odd size as well, and by rand and randn")
sizes = (4, 16, 20, 64, 75)
by_randn = {size: kept(size, torch.randn) for size in sizes}
by_rand = {size: kept(size, torch.rand) for size in sizes}
for size in sizes:
    print(f"seen: rows of {size}: randn keeps {by_randn[size]} numbers, rand {by_rand[size]}")
types = {size: by_type(size) for size in (15, 16)}
print(f"seen: in float64 the same as in float32: {types[15]} of 15 numbers, {types[16]} of 16")
generator = torch.Generator().manual_seed(0)
twice = torch.cat([torch.randn(20, generator=generator) for _ in range(2)]).double()
stream = torch.isclose(twice, noise(40), atol=1e-5).sum().item()
print(f"seen: two draws of 20 have {stream} numbers at their places in one draw of 40")
right = by_rand == {size: size for size in sizes} and (by_randn[16], by_randn[64]) == (16, 64)
wrong = all(by_randn[size] < size for size in (20, 75))
sys.exit(not (right and wrong and types[15] == 15 and types[16] < 4 and stream < 20))
PY
