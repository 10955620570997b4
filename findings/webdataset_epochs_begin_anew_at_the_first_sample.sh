#!/usr/bin/env bash
# webdataset: with_epoch sets the length of an epoch where the data have none of their own, or are too many for one. An
# epoch of 5 out of 12 samples should be followed by the next 5. Each epoch opens the files anew: all epochs have the
# same 5 samples, and the other 7 are never read, however long the training is. A shuffle over a small buffer changes
# their order and not which files they come from. A stream that repeats without an end by repeat does not go on from
# epoch to epoch either, though there is always more to read.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check webdataset==1.0.2 numpy==2.4.6
"$folder/venv/bin/python" - "$folder" <<'PY'
import sys
from importlib import metadata

import webdataset

urls = []
for shard in range(4):
    urls.append(f"{sys.argv[1]}/{shard}.tar")
    with webdataset.TarWriter(urls[-1]) as writer:
        for row in range(3):
            writer.write({"__key__": f"{shard}{row}", "txt": "text"})


def epochs(data):
    return [[sample["__key__"] for sample in data] for _ in range(3)]


print("webdataset", metadata.version("webdataset"))
every = [f"{shard}{row}" for shard in range(4) for row in range(3)]
print("guess: three epochs of 5 samples:", [[(every * 2)[5 * number + at] for at in range(5)] for number in range(3)])
seen = {
    "with_epoch": epochs(webdataset.WebDataset(urls, shardshuffle=False).with_epoch(5)),
    "repeat, with_epoch": epochs(webdataset.WebDataset(urls, shardshuffle=False).repeat().with_epoch(5)),
}
for name, samples in seen.items():
    print(f"seen, {name}:", samples)
sys.exit(seen != dict.fromkeys(seen, [every[:5]] * 3))
PY
