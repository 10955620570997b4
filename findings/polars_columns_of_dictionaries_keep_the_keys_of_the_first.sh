#!/usr/bin/env bash
# polars: a column of dictionaries, or of lists of them such as the messages of chats, has the keys of its first value.
# Keys of later ones are dropped with their values: when the first chat has roles and contents alone, none has
# tool_calls. Nothing is said, with strict=True, which is the default; strict=False, meant for looser types, keeps them
# all, and so do read_ndjson and DataFrame(rows) of the same data: whether a training set has its tool calls depends on
# whether one passes rows or columns.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check polars==2.1.0 pyarrow==26.0.1
"$folder/venv/bin/python" - <<'PY'
import json
import sys

import polars as pl
import pyarrow

question = {"role": "user", "content": "How warm is it?"}
call = {"role": "assistant", "content": "", "tool_calls": "weather()"}
rows = [{"messages": [question]}, {"messages": [question, call]}]
chats = [row["messages"] for row in rows]
lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
tables = {
    "rows": pl.DataFrame(rows),
    "read_ndjson": pl.read_ndjson(lines),
    "from pyarrow": pl.from_arrow(pyarrow.table({"messages": chats})),
    "a column with strict=False": pl.DataFrame({"messages": chats}, strict=False),
    "a column": pl.DataFrame({"messages": chats}),
}
seen = {name: table["messages"].to_list()[-1][-1].get("tool_calls") for name, table in tables.items()}
seen["a series of messages"] = pl.Series([question, call]).to_list()[-1].get("tool_calls")
print("polars", pl.__version__, "pyarrow", pyarrow.__version__)
print("guess: the last message has its tool call in each of them")
for name, calls in seen.items():
    print(f"{name}: {calls}")
sys.exit(list(seen.values()) != ["weather()"] * 4 + [None] * 2)
PY
