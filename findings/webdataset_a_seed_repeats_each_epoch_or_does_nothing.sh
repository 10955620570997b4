#!/usr/bin/env bash
# webdataset: a seed makes a run repeatable, and its epochs differ all the same, as in PyTorch's loaders. WebDataset
# takes one for the order of its files. With shardshuffle it is set back at each epoch, so that every epoch has the same
# order; with resampled=True, which draws files with replacement, it is not used at all: two runs with one seed draw
# other files, and nothing is said. The shuffle of samples has a generator of its own in either case, which random.seed
# does not reach: it is another at each run unless it is given its own seed, and then the same at each epoch.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check webdataset==1.0.2 numpy==2.4.6
"$folder/venv/bin/python" - "$folder" <<'PY'
import itertools
import random
import sys
from importlib import metadata

import webdataset

urls = []
for shard in range(12):
    urls.append(f"{sys.argv[1]}/{shard:02}.tar")
    with webdataset.TarWriter(urls[-1]) as writer:
        writer.write({"__key__": f"{shard:02}", "txt": "text"})


def keys(data, count=12):
    return [int(sample["__key__"]) for sample in itertools.islice(iter(data), count)]


def data(**options):
    random.seed(0)
    return webdataset.WebDataset(urls, seed=1, **options)


print("webdataset", metadata.version("webdataset"))
shuffled = data(shardshuffle=100)
orders = [keys(shuffled) for _ in range(3)]
print("guess: three epochs with a seed have three orders")
print("seen, shardshuffle:", *orders, sep="\n    ")
drawn = [keys(data(shardshuffle=False, resampled=True), 30) for _ in range(2)]
print("guess: two runs with one seed draw the same files")
print("seen, resampled:", *drawn, sep="\n    ")
mixed = [keys(data(shardshuffle=False).shuffle(100)) for _ in range(2)]
print("guess: two runs with random.seed(0) mix samples alike")
print("seen, shuffle:", *mixed, sep="\n    ")
sys.exit(orders != orders[:1] * 3 or drawn[0] == drawn[1] or mixed[0] == mixed[1])
PY
