#!/usr/bin/env bash
# ONNX Runtime GenAI: whether a finished text holds its end token depends on its neighbours. get_next_tokens gives the
# end token; get_sequence of a single prompt lacks it, and in a batch the rows that ended before the last one have it,
# with padding after it. A chat that goes on with append_tokens lacks the end of the model's turn, which a chat template
# puts there, in its context, and a row that is compared with the same prompt alone differs by a token. Lengths, and a
# check that a text ended by itself and not at the limit, are off by one for some rows.
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
for before, after in ((10, END), (11, 10), (12, 11)):
    table[before, after] = 30
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
def written(*prompts):
    parameters = og.GeneratorParams(model)
    parameters.set_search_options(batch_size=len(prompts))
    generator, steps = og.Generator(model, parameters), []
    generator.append_tokens(np.array(prompts, np.int32))
    while not generator.is_done():
        generator.generate_next_token()
        steps.append(generator.get_next_tokens().tolist())
    return [generator.get_sequence(row).tolist() for row in range(len(prompts))], steps, generator


(alone,), steps, generator = written([5, 10])
generator.append_tokens(np.array([[9]], np.int32))
next_turn = generator.get_sequence(0).tolist()
batch, _, _ = written([5, 10], [5, 11], [5, 12])
equal, _, _ = written([5, 10], [5, 10])
print("onnxruntime-genai", og.__version__)
print("guess: 5 10 is followed by the end token, 2, and so it stands in the text, alone and in a batch")
print("get_next_tokens of 5 10:", steps, "get_sequence:", alone)
print("after appending 9 for the next turn:", next_turn)
print("in a batch with 5 11 and 5 12:", batch)
print("in a batch with itself:", equal)
single = steps == [[END]] and alone == [5, 10] and next_turn == [5, 10, 9] and equal == [[5, 10]] * 2
sys.exit(not (single and batch == [[5, 10, END, 0], [5, 11, 10, END], [5, 12, 11, 10]]))
PY
