#!/usr/bin/env bash
# langchain: JsonOutputParser and PydanticOutputParser read answers that max_tokens has cut, and close them: a name is
# shorter, of three items two are left, 1250 is 12, and keys with a default have it. The types fit, so that validation
# says nothing, and a chain with a parser hands on wrong values, where a retry or a fallback waits for an error. This is
# what a stream needs, whose parts are read as they come, and parse and invoke do so for the final answer as well.
# json.loads and model_validate_json take no cut answer. The parser drops finish_reason.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check langchain-core==1.8.3 pydantic==2.14.4
LANGSMITH_TRACING=false "$folder/venv/bin/python" -W ignore - <<'PY'
import json
import sys
from importlib import metadata

from langchain_core.exceptions import OutputParserException
from langchain_core.messages import AIMessage
from langchain_core.output_parsers import JsonOutputParser, PydanticOutputParser
from pydantic import BaseModel


class Order(BaseModel):
    name: str
    paid: int = 0
    items: list[str] = []


whole = json.dumps({"name": "Ann", "paid": 1250, "items": ["tea", "milk", "bread"]})
cuts = [whole[:end] for end in range(1, len(whole))]
readers = {
    "json.loads": json.loads,
    "model_validate_json": Order.model_validate_json,
    "JsonOutputParser": JsonOutputParser().parse,
    "PydanticOutputParser": PydanticOutputParser(pydantic_object=Order).parse,
}


def taken(read):
    """The cut answers that are no error."""
    seen = []
    for cut in cuts:
        try:
            read(cut)
        except (OutputParserException, ValueError):
            continue
        seen.append(cut)
    return seen


counts = {name: len(taken(read)) for name, read in readers.items()}
message = AIMessage(whole[: whole.index("50")], response_metadata={"finish_reason": "length"})
order = PydanticOutputParser(pydantic_object=Order).invoke(message)
print("langchain-core", metadata.version("langchain-core"))
print("guess: an answer that is cut is an error")
print(f"of {len(cuts)} cut answers are taken:", *(f"{count} by {name}," for name, count in counts.items()))
print(repr(message.content), "with the finish reason length is", repr(order))
strict, loose = list(counts.values())[:2], list(counts.values())[2:]
sys.exit(not (strict == [0, 0] and min(loose) > len(cuts) / 2 and order == Order(name="Ann", paid=12)))
PY
