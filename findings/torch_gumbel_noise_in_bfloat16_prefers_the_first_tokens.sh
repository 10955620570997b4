#!/usr/bin/env bash
# PyTorch: the argmax of log-probabilities plus Gumbel noise, -log(-log(u)), is a sample of the distribution, and masked
# text models are decoded so. In bfloat16 u has so few values near 1 that the largest noise of a vocabulary is shared by
# many tokens, and argmax takes the first of them: of 1,000 tokens with equal probability, the first hundred are drawn
# three times as often as they should be, the last hundred ten times less. float16 is off by a fifth. Dividing the
# probabilities by exponential noise has its small values at the deciding end, and draws right in bfloat16 as well.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0
OMP_NUM_THREADS=1 "$folder/venv/bin/python" - <<'PY'
import sys

import torch

torch.manual_seed(0)
tokens, draws = 1000, 40_000


def gumbel(dtype):
    noise = torch.rand(draws // 10, tokens, dtype=dtype)
    return (-torch.log(-torch.log(noise))).argmax(-1)


def exponential(dtype):
    noise = torch.empty(draws // 10, tokens, dtype=dtype).exponential_()
    return (torch.full((tokens,), 1 / tokens, dtype=dtype) / noise).argmax(-1)


def shares(draw, dtype):
    drawn = torch.cat([draw(dtype) for _ in range(10)])
    return (drawn < 100).float().mean().item(), (drawn >= 900).float().mean().item()


print("torch", torch.__version__)
print("guess: the first and the last hundred of 1,000 equal tokens are drawn 10% of the time each, in each type")
seen = {}
for dtype in (torch.float32, torch.float16, torch.bfloat16):
    for draw in (gumbel, exponential):
        first, last = seen[dtype, draw] = shares(draw, dtype)
        print(f"seen: {draw.__name__} noise in {dtype}: first hundred {first:.1%}, last hundred {last:.1%}")
even = [
    abs(share - 0.1) < 0.01
    for dtype, draw in seen
    for share in seen[dtype, draw]
    if (dtype, draw) not in ((torch.float16, gumbel), (torch.bfloat16, gumbel))
]
half, brief = seen[torch.float16, gumbel], seen[torch.bfloat16, gumbel]
sys.exit(not (all(even) and half[0] > 0.11 > 0.09 > half[1] and brief[0] > 0.25 and brief[1] < 0.02))
PY
