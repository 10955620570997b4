#!/usr/bin/env bash
# dspy: a field of the type Optional[int] is None when the model writes None or null. A field of the type Optional[str],
# also written str | None, is the text "None" then, which is true and not None: a check for a missing value passes each
# time. dspy writes None itself where a demonstration or a former turn has no value, so that it teaches the model the
# word that it does not read back: a value that is written by the adapter and parsed by it comes back as another.
# The JSON adapter reads null.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check dspy==3.4.1 litellm==1.110.2
LITELLM_LOCAL_MODEL_COST_MAP=True DSPY_CACHEDIR="$folder/cache" "$folder/venv/bin/python" -W ignore - <<'PY'
import sys
from importlib import metadata

import dspy


class Read(dspy.Signature):
    text: str = dspy.InputField()
    nickname: str | None = dspy.OutputField()
    age: int | None = dspy.OutputField()


chat = dspy.ChatAdapter()
demo = {"text": "Somebody came.", "nickname": None, "age": None}
prompt = chat.format(Read, demos=[demo], inputs={"text": "A dog came."})
shown = next(part["content"] for part in prompt if part["role"] == "assistant")
back = chat.parse(Read, shown)
of_json = dspy.JSONAdapter().parse(Read, '{"nickname": null, "age": null}')
print("dspy", metadata.version("dspy"))
print("guess: a demonstration with None in both fields, as the adapter writes it, is read back as None and None")
print("written:", " ".join(shown.split()))
print("read:", back, "; from JSON:", of_json)
sys.exit(not (back == {"nickname": "None", "age": None} and of_json == {"nickname": None, "age": None}))
PY
