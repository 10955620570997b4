#!/usr/bin/env bash
# datasets: split_dataset_by_node gives each of several nodes its part of the data, and a shuffle afterwards, with a
# seed per node, as for other random numbers, or none, mixes the rows of that part. So it is for a Dataset. For a stream
# the shuffle moves to the front: files are shuffled first, by the node's own seed, and then divided, so that nodes take
# the same files and leave out others: rows are trained on twice in an epoch, and others never. The number of rows is
# right on each node. With the same seed on all of them, every row is there once.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check datasets==5.2.0
HF_HUB_OFFLINE=1 HF_HOME="$folder/home" "$folder/venv/bin/python" - <<'PY'
import sys

import datasets
from datasets import Dataset
from datasets.distributed import split_dataset_by_node

ROWS, NODES = 64, 4
rows = Dataset.from_dict({"x": list(range(ROWS))})


def parts(data, seed, **options):
    """The rows of all nodes."""
    nodes = [split_dataset_by_node(data, rank=rank, world_size=NODES) for rank in range(NODES)]
    return [[row["x"] for row in node.shuffle(seed=seed(rank), **options)] for rank, node in enumerate(nodes)]


stream = rows.to_iterable_dataset(num_shards=8)
cases = {
    "Dataset, a seed per node": parts(rows, lambda rank: rank),
    "stream, the same seed": parts(stream, lambda rank: 0, buffer_size=ROWS),
    "stream, a seed per node": parts(stream, lambda rank: rank, buffer_size=ROWS),
}
print("datasets", datasets.__version__)
print(f"guess: {NODES} nodes have {ROWS} different rows in all, whatever their seeds")
different = {}
for name, nodes in cases.items():
    different[name] = len({row for node in nodes for row in node})
    print(f"{name}: {[len(node) for node in nodes]} rows, {different[name]} different ones")
whole = all(len(node) == ROWS // NODES for nodes in cases.values() for node in nodes)
sys.exit(not (whole and list(different.values())[:2] == [ROWS] * 2 and different["stream, a seed per node"] < ROWS - 8))
PY
