#!/usr/bin/env bash
# llama.cpp: the arguments of an earlier tool call are JSON text in the API, and a template writes them with tojson. Its
# server parses them and writes each number anew, as C++ prints a number if one does not ask for more: with six digits.
# 123456.789 is shown to the model as 123457, 1700000000.5 as 1.7e+09, 1.0 as 1, and an integer of 64 unsigned bits as a
# negative number. A time, an amount, or a coordinate that a model wrote is another one in its own memory of it, and the
# next call goes on from there. The same holds for bounds in the schemas of tools. Python's json keeps every digit.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check xllamacpp==2026.10.11549 gguf==0.19.0 numpy==2.4.6
OMP_NUM_THREADS=1 "$folder/venv/bin/python" - "$folder" <<'PY'
import json
import os
import sys
import urllib.request
from pathlib import Path

import gguf
import numpy
import xllamacpp

template = (
    "{{ tools | tojson if tools else '' }}{% for m in messages %}<|im_start|>{{ m.role }}{{ '\\n' }}{{ m.content or '' }}"
    "{% for call in m.tool_calls or [] %}<tool_call>{{ call.function.arguments | tojson }}</tool_call>{% endfor %}"
    "<|im_end|>{{ '\\n' }}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant{{ '\\n' }}{% endif %}"
)

# A model whose logits are the same at each place, with a token per letter and per byte; "a" is the best.
file, letters = str(Path(sys.argv[1]) / "letters.gguf"), [chr(ord("a") + index) for index in range(26)]
tokens = ["<unk>", "<s>", "</s>", *letters, "\u2581", *(f"<0x{byte:02X}>" for byte in range(256))]
writer = gguf.GGUFWriter(file, "llama")
for key, value in {
    "context_length": 2048, "embedding_length": 32, "block_count": 1, "feed_forward_length": 32, "head_count": 2,
    "head_count_kv": 2, "layer_norm_rms_eps": 1e-5, "vocab_size": len(tokens), "rope_dimension_count": 16,
}.items():
    getattr(writer, f"add_{key}")(value)
writer.add_tokenizer_model("llama")
writer.add_token_list(tokens)
writer.add_token_scores([0.0] * len(tokens))
writer.add_token_types([2, 3, 3, *[1] * 27, *[6] * 256])
writer.add_chat_template(template)
logits = numpy.full(len(tokens), -20, numpy.float32)
logits[3:29] = -numpy.arange(26) / 4
writer.add_tensor("token_embd.weight", numpy.ones((len(tokens), 32), numpy.float32))
writer.add_tensor("output.weight", numpy.repeat(logits[:, None] / 32, 32, 1))
for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
    writer.add_tensor(f"blk.0.{name}.weight", numpy.zeros((32, 32), numpy.float32))
for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
    writer.add_tensor(f"{name}.weight", numpy.ones(32, numpy.float32))
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
params = xllamacpp.CommonParams()
params.model.path, params.n_ctx, params.n_parallel, params.warmup = file, 2048, 1, False
params.cpuparams.n_threads, params.verbosity, params.use_jinja = 1, -1, True
server = xllamacpp.Server(params)


def post(path, **body):
    """The server's answer to a request, as text."""
    data, kind = json.dumps(body).encode(), {"Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(server.listening_address + path, data, kind)) as answer:
        return answer.read().decode()


arguments = {
    "amount": 123456.789, "time": 1700000000.5, "latitude": 52.5200066, "whole": 1.0, "id": 12345678901234567890,
    "count": 1234567890, "half": 0.5,
}
call = {"id": "1", "type": "function", "function": {"name": "pay", "arguments": json.dumps(arguments)}}
messages = [
    {"role": "user", "content": "pay"},
    {"role": "assistant", "content": None, "tool_calls": [call]},
    {"role": "tool", "tool_call_id": "1", "content": "paid"},
]
schema = {"type": "object", "properties": {"amount": {"type": "number", "maximum": 9999999.99}}}
tool = {"type": "function", "function": {"name": "pay", "description": "pays", "parameters": schema}}
prompt = json.loads(post("/apply-template", messages=messages, tools=[tool]))["prompt"]
shown = json.loads(prompt.split("<tool_call>")[1].split("</tool_call>")[0])
print("xllamacpp 2026.10.11549")
print("guess: the model is shown the numbers of its call, to the last digit")
for name, value in arguments.items():
    print(f"seen: {name} {value!r} is shown as {shown[name]!r}")
bound = prompt.split('"maximum": ')[1].split("}")[0]
print("a tool's maximum 9999999.99 is shown as", bound)
kept = [name for name, value in arguments.items() if repr(shown[name]) == repr(value)]
sys.stdout.flush()
os._exit(not (kept == ["count", "half"] and shown["amount"] == 123457 and shown["id"] < 0 and bound == "1e+07"))
PY
