#!/usr/bin/env bash
# torchmetrics: metrics can be added, multiplied and divided, which gives a metric that is updated and computed as one.
# A metric that stands in the formula twice is updated twice with each batch: wrong / (wrong + right) of two counts is
# 2/3 where half of the answers are wrong, and the count itself is doubled. So it is for a metric and a formula of it in
# one MetricCollection. Means and ratios, such as precision and recall in an F1, do not change when everything is
# counted twice, and a test with those passes. clone() in the formula gives what was meant.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 torchmetrics==1.9.0 numpy==2.4.6
OMP_NUM_THREADS=1 "$folder/venv/bin/python" - <<'PY'
import sys

import torch
import torchmetrics
from torchmetrics import Metric, MetricCollection, SumMetric


class Count(Metric):
    def __init__(self, right):
        super().__init__()
        self.right = right
        self.add_state("count", torch.tensor(0.0), dist_reduce_fx="sum")

    def update(self, answers, expected):
        self.count += ((answers == expected) == self.right).sum()

    def compute(self):
        return self.count


print("torchmetrics", torchmetrics.__version__)
answers, expected = torch.tensor([1, 1, 1, 1]), torch.tensor([1, 1, 0, 0])
seen = []
for name, again in (("the same metric", lambda metric: metric), ("a clone", Metric.clone)):
    wrong, right = Count(False), Count(True)
    share = wrong / (again(wrong) + right)
    share.update(answers, expected)
    total = SumMetric()
    both = MetricCollection({"tokens": total, "thousands": again(total) / 1000})
    both.update(torch.tensor(2000.0))
    seen.append((round(share.compute().item(), 3), {key: value.item() for key, value in both.compute().items()}))
    print("guess:", (0.5, {"thousands": 2.0, "tokens": 2000.0}))
    print(f"seen, {name} twice:", seen[-1])
sys.exit(seen != [(0.667, {"thousands": 4.0, "tokens": 4000.0}), (0.5, {"thousands": 2.0, "tokens": 2000.0})])
PY
