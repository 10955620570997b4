#!/usr/bin/env bash
# webdataset: the files of a sample share a name up to the point, "0001.jpg" and "0001.json". The point is the first
# one: "cat_0.5.jpg" is the part "5.jpg" of the sample "cat_0". Keys with a temperature, a version or a time in them are
# cut, and samples whose keys are alike up to the first point become one, with all their parts in it: four pairs of
# image and caption are read as one sample. TarWriter writes such keys without a word, and reading its file gives other
# keys back.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check webdataset==1.0.2 numpy==2.4.6
"$folder/venv/bin/python" - "$folder" <<'PY'
import sys
from importlib import metadata

import webdataset

path = sys.argv[1] + "/samples.tar"


def read_back(keys):
    with webdataset.TarWriter(path) as writer:
        for key in keys:
            writer.write({"__key__": key, "txt": f"text of {key}", "json": {"of": key}})
    samples = webdataset.WebDataset(path, shardshuffle=False)
    return [(sample["__key__"], sorted(part for part in sample if not part.startswith("__"))) for sample in samples]


print("webdataset", metadata.version("webdataset"))
cases = [["a1", "a2"], ["t0.5_a", "t0.7_a"], ["v1.0", "v1.1", "v2.0"]]
seen = []
for keys in cases:
    seen.append(read_back(keys))
    print("guess:", [(key, ["json", "txt"]) for key in keys])
    print("seen:", seen[-1])
v1 = ["0.json", "0.txt", "1.json", "1.txt"]
sys.exit(
    seen
    != [
        [("a1", ["json", "txt"]), ("a2", ["json", "txt"])],
        [("t0", ["5_a.json", "5_a.txt", "7_a.json", "7_a.txt"])],
        [("v1", v1), ("v2", ["0.json", "0.txt"])],
    ]
)
PY
