#!/usr/bin/env bash
# pydantic: a log-probability of -inf, as a filtered token has it, leaves a model in three forms. model_dump_json
# writes null. model_dump(mode="json"), described as containing only what JSON can, keeps -inf in a field declared as
# a float and turns it to None in one declared Any or dict, so that json.dumps of it writes -Infinity, which no JSON
# parser outside of Python reads, or null: a type hint decides. And the model's own JSON is not read back, since null
# is no float.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check pydantic==2.14.4
"$folder/venv/bin/python" - <<'PY'
import json
import math
import sys
from typing import Any

import pydantic


class Token(pydantic.BaseModel):
    logprob: float
    top: list[float]
    raw: Any
    extra: dict


token = Token(logprob=-math.inf, top=[-math.inf], raw=-math.inf, extra={"logprob": -math.inf})
written = token.model_dump_json()
dumped = json.dumps(token.model_dump(mode="json"))
try:
    Token.model_validate_json(written)
    read = True
except pydantic.ValidationError as error:
    read = False
    reason = error.errors()[0]["msg"]
print("pydantic", pydantic.VERSION)
print("guess: model_dump in JSON mode has the values that model_dump_json writes, and these can be read back")
print("seen, model_dump_json:", written)
print('seen, json.dumps of model_dump(mode="json"):', dumped)
print("seen, the first one read by the same model:", "read" if read else reason)
null = '{"logprob":null,"top":[null],"raw":null,"extra":{"logprob":null}}'
mixed = '{"logprob": -Infinity, "top": [-Infinity], "raw": null, "extra": {"logprob": null}}'
sys.exit(written != null or dumped != mixed or read)
PY
