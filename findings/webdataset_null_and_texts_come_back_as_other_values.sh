#!/usr/bin/env bash
# webdataset: a part named json holds a value that is written as JSON and read back as it was. A text is taken for JSON
# that is written already: the answer "42" comes back as a number, "true" as a boolean, "1e3" as 1000.0, and "yes" stops
# the reader. None is written as null, and null is not decoded at all: a decoder says by None that it is not the one for
# a part, so that the bytes b"null" come back, which are true in an if, and other than None. None in a pickle comes back
# as the bytes of a pickle. Lists with the same values in them are right. Answers and optional fields of a data set
# change on the way, and nothing is said.
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


def read_back(value, part="json"):
    with webdataset.TarWriter(path) as writer:
        writer.write({"__key__": "one", part: value})
    return next(iter(webdataset.WebDataset(path, shardshuffle=False).decode()))[part]


print("webdataset", metadata.version("webdataset"))
values = [None, "null", "42", "true", "1e3", '"yes"', 42, [None, "42", "true"]]
seen = [read_back(value) for value in values]
for value, got in zip(values, seen):
    print(f"guess: {value!r}; seen: {got!r}")
pickled = read_back(None, "pickle")
print(f"guess, as a pickle: None; seen: {pickled!r}")
same = [b"null", b"null", 42, True, 1000.0, "yes", 42, [None, "42", "true"]]
sys.exit(seen != same or type(seen[3]) is not bool or not isinstance(pickled, bytes))
PY
