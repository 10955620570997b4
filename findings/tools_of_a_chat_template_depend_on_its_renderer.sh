#!/usr/bin/env bash
# transformers, Jinja and MiniJinja: chat templates write tools and arguments by the filter tojson. transformers has one
# of its own. In Jinja itself and in MiniJinja, in which servers write the same template, "<", ">", "&" and the
# apostrophe become \u003c and the like, and Jinja sorts the keys too, so that a name comes after its parameters; each
# renders without an error. A tool whose description says "don't" is then another prompt than in training, and a cache
# of prefixes finds nothing.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check transformers==5.23.0 jinja2==3.1.6 minijinja==3.0.5
HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - <<'PY'
import json
import logging
import sys
from importlib import metadata

import jinja2
import minijinja

logging.disable()
import transformers  # noqa: E402
from tokenizers import Tokenizer, models  # noqa: E402

template = "{% for tool in tools %}{{ tool | tojson }}{% endfor %}"
tool = {"name": "find", "description": "don't ask if x < 3 & y", "arguments": {"b": 1e-7, "a": "é"}}
tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0}, "a")))
ask = {"tools": [tool], "chat_template": template, "tokenize": False}
seen = {
    "transformers": tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], **ask),
    "Jinja": jinja2.Environment().from_string(template).render(tools=[tool]),
    "MiniJinja": minijinja.Environment().render_str(template, tools=[tool]),
}
print(*(f"{name} {metadata.version(name)}" for name in ("transformers", "jinja2", "minijinja")))
print("guess: one template and one tool give one text:", json.dumps(tool, ensure_ascii=False))
for name, text in seen.items():
    print(f"{name}: {text}")
equal = all(json.loads(text) == tool for text in seen.values())
print("equal as JSON:", equal)
escaped = {name: "\\u0027" in text and "\\u003c" in text for name, text in seen.items()}
order = [[*json.loads(text)] == [*tool] for text in seen.values()]
right = seen["transformers"] == json.dumps(tool, ensure_ascii=False) and order == [True, False, True]
sys.exit(not (equal and right and escaped == {"transformers": False, "Jinja": True, "MiniJinja": True}))
PY
