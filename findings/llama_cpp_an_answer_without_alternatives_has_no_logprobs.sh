#!/usr/bin/env bash
# llama.cpp: in OpenAI's API logprobs=True with top_logprobs=0 gives the log-probability of each token of the answer,
# and no alternatives; so does logprobs=0 of completions. It is the cheapest way to score an answer. The server gives
# none at all then: the key is absent or null, as if it had not been asked for, and there is no error. Without
# top_logprobs, logprobs=True gives 20 alternatives per token. A sum over what came is 0, the log-probability of a
# certain answer.
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
    "{% for m in messages %}<|im_start|>{{ m.role }}{{ '\\n' }}{{ m.content or '' }}"
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


def given(path, **options):
    """How many alternatives the answer's first token has, or None if there are no log-probabilities."""
    choice = json.loads(post(path, max_tokens=2, temperature=0, **options))["choices"][0]
    found = choice.get("logprobs")
    return found and len(found["content"][0]["top_logprobs"])


messages, seen = [{"role": "user", "content": "hi"}], {}
cases = [{"logprobs": True, "top_logprobs": 0}, {"logprobs": True, "top_logprobs": 1}, {"logprobs": True}]
print("xllamacpp 2026.10.11549")
print("guess: each of these gives the log-probabilities of the answer's tokens, the first of them without alternatives")
for options in cases:
    seen[f"chat {options}"] = given("/v1/chat/completions", messages=messages, **options)
for options in ({"logprobs": 0}, {"logprobs": 1}):
    seen[f"completions {options}"] = given("/v1/completions", prompt="hi", **options)
for case, count in seen.items():
    print(f"seen: {case}: {'no log-probabilities' if count is None else f'{count} alternatives'}")
sys.stdout.flush()
os._exit(list(seen.values()) != [None, 1, 20, None, 1])
PY
