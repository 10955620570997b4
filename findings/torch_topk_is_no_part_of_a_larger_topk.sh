#!/usr/bin/env bash
# PyTorch: where logits tie, which is frequent in bfloat16, topk takes other tokens for another k: the five of topk(5)
# are not the first five of topk(6), and the first of two is not argmax, which takes the lowest index. The order of
# equal values is undefined, and depends on k and on the length. Log-probabilities that are returned for 5 and for 6
# tokens, drafts of a wider tree, or a greedy token from topk, are then those of another choice among equals.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0
OMP_NUM_THREADS=1 "$folder/venv/bin/python" - <<'PY'
import sys

import torch

torch.manual_seed(0)
rows, vocabulary = 500, 32000
logits = torch.randn(rows, vocabulary).mul(3).to(torch.bfloat16)
best = logits.argmax(-1)
tied = (logits == logits.amax(-1, keepdim=True)).sum(-1) > 1
five, six = logits.topk(5).indices, logits.topk(6).indices
others = sum(set(a) != set(b[:5]) for a, b in zip(five.tolist(), six.tolist()))
first = {k: int((logits.topk(k).indices[:, 0] != best).sum()) for k in (1, 2, 5, 20)}
stable = logits.sort(dim=-1, descending=True, stable=True).indices
print("torch", torch.__version__)
print("guess: the tokens of topk(5) are the first of topk(6), and the very first is that of argmax")
print(f"seen: of {rows} rows of {vocabulary:,} random logits in bfloat16, {int(tied.sum())} have a tie at the top")
print(f"seen: the first token is not argmax's in, by k: {first}")
print(f"seen: the first five of topk(6) are other tokens than those of topk(5) in {others} rows")
print(f"a stable sort: its first token is not argmax's in {int((stable[:, 0] != best).sum())}")
sys.exit(not (first[2] > 0 and others > rows // 20 and torch.equal(stable[:, 0], best)))
PY
