#!/usr/bin/env bash
# torchmetrics: Perplexity takes logits, and computes their softmax before it takes the logarithm of the target's. A
# probability that is too small for the type becomes 0, its logarithm infinite, and with it the perplexity of the whole
# data set. In float16 a gap of 20 between two logits is enough, which a confident and mistaken model often has; in
# float32 it is one of 104. cross_entropy of the same logits has all the digits. One token thus spoils a score, in the
# type of the model.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 torchmetrics==1.9.0 numpy==2.4.6
OMP_NUM_THREADS=1 "$folder/venv/bin/python" - <<'PY'
import sys

import torch
import torchmetrics
from torch.nn import functional
from torchmetrics.text import Perplexity

target = torch.tensor([[0] * 999 + [2]])


def score(gap, dtype):
    """The logarithm of the perplexity of 1,000 tokens, one of which the model takes for another one."""
    logits = torch.zeros(1, 1000, 8)
    logits[:, :999, 0] = logits[:, 999, 1] = gap
    logits = logits.to(dtype)
    return Perplexity()(logits, target).log().item(), functional.cross_entropy(logits[0].float(), target[0]).item()


print("torchmetrics", torchmetrics.__version__, "torch", torch.__version__)
print("guess: the perplexity is that of cross_entropy, up to rounding")
seen = {}
for gap, dtype in ((15, torch.float16), (20, torch.float16), (20, torch.float32), (110, torch.float32)):
    seen[gap, dtype] = ours, theirs = score(gap, dtype)
    print(f"seen: one gap of {gap} in {dtype}: log perplexity {ours:.4f}, cross entropy {theirs:.4f}")
infinite = [ours == float("inf") for ours, _ in seen.values()]
sys.exit(infinite != [False, True, False, True] or any(theirs > 1 for _, theirs in seen.values()))
PY
