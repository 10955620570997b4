#!/usr/bin/env bash
# llama.cpp: what a chat template prints is text in Jinja, whatever it is: None is the word None, a list and a
# dictionary are written as in Python, a missing part of something missing is an error, and so is text + None. In the
# engine of llama.cpp's server None and dictionaries print nothing, lists their items without anything between, and text
# + None is the text. A template that writes a tool's parameters without tojson shows the model none of them, and
# default() fills in for None too. A template that is broken in transformers passes as tested here, and one that works
# there is quietly short here.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check xllamacpp==2026.10.11549 gguf==0.19.0 numpy==2.4.6 jinja2==3.1.6
OMP_NUM_THREADS=1 "$folder/venv/bin/python" - "$folder" <<'PY'
import json
import os
import sys
import urllib.request
from pathlib import Path

import gguf
import jinja2
import numpy
import xllamacpp

cases = [
    "none", "[1, 'a', true]", "{'type': 'object'}", "messages[0].get('name')", "none | default('d')", "'x' + none",
    "messages[0].missing.part", "messages[5].content", "'a' + 1", "missing", "none or 'd'",
]
template = "\n".join("{{ " + case + " }}" for case in cases)

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


def by_jinja(case):
    """What transformers renders, or the name of its error."""
    try:
        return jinja2.Environment(trim_blocks=True, lstrip_blocks=True).from_string(case).render(messages=messages)
    except (TypeError, jinja2.UndefinedError) as error:
        return type(error).__name__


messages = [{"role": "user", "content": "hi"}]
expected = [by_jinja("{{ " + case + " }}") for case in cases]
prompt = json.loads(post("/apply-template", messages=messages))["prompt"].split("\n")
print("xllamacpp 2026.10.11549 jinja2", jinja2.__version__)
print("guess: each of these prints the same in both, or is an error in both")
for case, one, other in zip(cases, expected, prompt, strict=True):
    print(f"seen: {case} is {one!r} in Jinja, {other!r} in llama.cpp")
sys.stdout.flush()
os._exit(
    prompt != ["", "1aTrue", "", "", "d", "x", "", "", "a1", "", "d"]
    or [one == other for one, other in zip(expected, prompt, strict=True)] != [False] * 9 + [True, True]
)
PY
