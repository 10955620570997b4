#!/usr/bin/env bash
# vector-quantize-pytorch: FSQ rounds each dimension to one of a few levels, and one would take its output for a fixed
# point: quantized once more, it should stay what it is. A tanh comes before the rounding, which pulls the outer
# levels in: with eight levels almost every code becomes another one. Codes of an image are then lost where a
# decoder's input is encoded again, in a loop of edits or a residual stage. With three levels per dimension, or
# bound_hard_clamp=True, codes stay; indices and codes of one pass always belong together.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy==2.4.6 vector-quantize-pytorch==1.32.0
OMP_NUM_THREADS=1 "$folder/venv/bin/python" - <<'PY'
import sys
from importlib import metadata

import torch
from vector_quantize_pytorch import FSQ

torch.manual_seed(0)
vectors = torch.randn(1, 4000, 4)


def changed(levels, **more):
    """The share of codes that are others when they are quantized again."""
    quantizer = FSQ(levels, **more).eval()
    codes, indices = quantizer(vectors)
    assert torch.equal(quantizer.indices_to_codes(indices), codes)
    assert torch.equal(quantizer.codes_to_indices(codes), indices.to(torch.int32))
    return float((quantizer(codes)[1] != indices).float().mean())


seen = {
    "levels 8 8 8 8": changed([8, 8, 8, 8]),
    "levels 8 5 5 5": changed([8, 5, 5, 5]),
    "levels 8 8 8 8, symmetric": changed([8, 8, 8, 8], preserve_symmetry=True),
    "levels 3 3 3 3": changed([3, 3, 3, 3]),
    "levels 8 8 8 8, bound_hard_clamp": changed([8, 8, 8, 8], bound_hard_clamp=True),
}
print(*(f"{name} {metadata.version(name)}" for name in ("vector-quantize-pytorch", "torch")))
print("guess: a vector that FSQ returned is quantized to itself")
for name, share in seen.items():
    print(f"seen, {name}: {share:.0%} of the codes are others when they are quantized again")
values = [*seen.values()]
sys.exit(not (values[0] > 0.8 and values[1] > 0.3 and values[2] > 0.2 and values[3:] == [0, 0]))
PY
