#!/usr/bin/env bash
# ONNX Runtime GenAI: top_k=0 turns top_k off, and top_p=0, which is its default, turns top_p off. With do_sample=True
# and either of them on, tokens are drawn; with both off, the model's own distribution, every token is the best one, at
# any temperature and for all seeds, and nothing is said. Who sets top_k=0 to sample without a filter, as for pass@k or
# a training by rewards, gets one text many times. top_p=1.0, which filters nothing either, is what draws. Without
# do_sample a temperature and a top_p do nothing.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check onnxruntime-genai==0.18.0 onnxruntime==1.32.0 onnx==1.23.2
OMP_NUM_THREADS=1 "$folder/venv/bin/python" - "$folder" <<'PY'
import json
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime_genai as og
from onnx import TensorProto, helper, numpy_helper

TOKENS, END, folder = 64, 2, Path(sys.argv[1])
table = np.random.default_rng(0).normal(0, 1, (TOKENS, TOKENS)).astype(np.float32)
# A model whose next token depends on the last one alone: a row of a table.
graph = helper.make_graph(
    [helper.make_node("Gather", ["table", "input_ids"], ["logits"], axis=0)], "table",
    [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["rows", "tokens"])],
    [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["rows", "tokens", TOKENS])],
    [numpy_helper.from_array(table, "table")],
)  # fmt: skip
onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), folder / "model.onnx")
decoder = {
    "filename": "model.onnx", "head_size": 4, "hidden_size": 4, "num_attention_heads": 1, "num_key_value_heads": 1,
    "num_hidden_layers": 1, "session_options": {"provider_options": []}, "inputs": {"input_ids": "input_ids"},
    "outputs": {"logits": "logits"},
}  # fmt: skip
config = {"type": "llama", "vocab_size": TOKENS, "context_length": 64, "eos_token_id": END, "pad_token_id": 0}
config = {"model": {**config, "bos_token_id": 1, "decoder": decoder}, "search": {"max_length": 14}}
(folder / "genai_config.json").write_text(json.dumps(config))
model = og.Model(str(folder))
def texts(**options):
    """The different texts of ten seeds."""
    found = set()
    for seed in range(10):
        parameters = og.GeneratorParams(model)
        parameters.set_search_options(random_seed=seed, **options)
        generator = og.Generator(model, parameters)
        generator.append_tokens(np.array([5, 6, 7], np.int32))
        while not generator.is_done():
            generator.generate_next_token()
        found.add(tuple(generator.get_sequence(0).tolist()))
    return found


greedy, hot = texts(), {"do_sample": True, "temperature": 5.0}
cases = {
    "neither set": {}, "top_k=0, top_p=1.0": {"top_k": 0, "top_p": 1.0},
    "top_k=0, top_p=0.9": {"top_k": 0, "top_p": 0.9}, "top_k=50, top_p=0.0": {"top_k": 50, "top_p": 0.0},
    "top_k=0": {"top_k": 0},
    "top_k=0, top_p=0.0": {"top_k": 0, "top_p": 0.0},
}  # fmt: skip
seen = {name: texts(**hot, **options) for name, options in cases.items()}
still = texts(temperature=5.0, top_p=0.9)
print("onnxruntime-genai", og.__version__)
print("guess: do_sample=True at a temperature of 5 gives ten texts for ten seeds, also without a filter")
for name, found in seen.items():
    print(f"do_sample=True, {name}: {len(found)} texts, greedy: {found == greedy}")
print("temperature=5, top_p=0.9 without do_sample:", len(still), "texts, greedy:", still == greedy)
drawn, off = list(seen.values())[:4], list(seen.values())[4:]
sys.exit(not (all(len(found) == 10 for found in drawn) and off == [greedy] * 2 and still == greedy))
PY
