#!/usr/bin/env bash
# torchmetrics: retrieval metrics look at the order of the scores, and a search may have any scores: log-probabilities,
# negative distances, logits of a reranker. RetrievalMRR, MAP, Precision and Recall count a document whose score is not
# above 0 as irrelevant, whatever its label: a perfect ranking by log-probabilities has MRR 0 and recall 0. HitRate and
# NormalizedDCG of the same scores are 1. Scores of both signs lose the relevant documents below 0, which looks like a
# weak model. Adding a constant to all scores, which changes no ranking, changes the result; nothing is said.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 torchmetrics==1.9.0 numpy==2.4.6
OMP_NUM_THREADS=1 "$folder/venv/bin/python" - <<'PY'
import sys

import torch
import torchmetrics
from torchmetrics import retrieval

relevant = torch.tensor([1, 1, 0, 0])
queries = torch.zeros(4, dtype=torch.long)
metrics = {
    "MRR": retrieval.RetrievalMRR(),
    "MAP": retrieval.RetrievalMAP(),
    "Precision": retrieval.RetrievalPrecision(top_k=2),
    "Recall": retrieval.RetrievalRecall(top_k=2),
    "HitRate": retrieval.RetrievalHitRate(top_k=2),
    "NormalizedDCG": retrieval.RetrievalNormalizedDCG(),
}
print("torchmetrics", torchmetrics.__version__)
seen = {}
for shift in (5, 2.5, 0):
    scores = torch.tensor([-1.0, -2.0, -3.0, -4.0]) + shift
    seen[shift] = [metric(scores, relevant, indexes=queries).item() for metric in metrics.values()]
    print("guess:", dict.fromkeys(metrics, 1.0))
    print(f"seen, scores {scores.tolist()}:", dict(zip(metrics, seen[shift])))
shifted = torch.tensor([0.5, -0.5, -1.0, -2.0])
half = [metric(shifted, relevant, indexes=queries).item() for metric in metrics.values()]
print(f"seen, scores {shifted.tolist()}:", dict(zip(metrics, half)))
sys.exit(seen != {5: [1.0] * 6, 2.5: [1.0] * 6, 0: [0.0] * 4 + [1.0] * 2} or half != [1.0, 1.0, 0.5, 0.5, 1.0, 1.0])
PY
