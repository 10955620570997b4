#!/usr/bin/env bash
# gguf: an empty array or text that is added to a file is not written, and nothing is said. A vocabulary without merges,
# a chat template that is switched off by "": the key is absent when the file is read, though the writer was given it,
# so that a reader takes its default or fails at another place. Arrays of arrays are written, and come back as one flat
# list.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check gguf==0.19.0
"$folder/venv/bin/python" - "$folder" <<'PY'
import sys
from pathlib import Path

import gguf

file = Path(sys.argv[1]) / "keys.gguf"
writer = gguf.GGUFWriter(file, "llama")
written = {"tokenizer.ggml.merges": [], "x.pairs": [[1, 2], [3, 4]], "x.numbers": [1, 2], "x.text": ""}
for key, value in written.items():
    (writer.add_string if isinstance(value, str) else writer.add_array)(key, value)
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
fields = gguf.GGUFReader(file).fields
read = {key: fields[key].contents() if key in fields else "absent" for key in written}
print("gguf 0.19.0")
print("guess: what was written is read:", written)
print("seen:", read)
sys.exit(read != {"tokenizer.ggml.merges": "absent", "x.pairs": [1, 2, 3, 4], "x.numbers": [1, 2], "x.text": "absent"})
PY
