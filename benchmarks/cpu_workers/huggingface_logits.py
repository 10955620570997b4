"""Logits of transformers in float32 for given tokens: `huggingface_logits.py FILE.gguf OUT.npy < texts.json`.

`texts` is a list of [ids, start]; OUT.npy has float32 [T, V], the logits before each token from `start` on.
"""

import json
import sys
from pathlib import Path

import numpy
import torch
from transformers import AutoModelForCausalLM


def main() -> None:
    file, out = (Path(name) for name in sys.argv[1:])
    texts = json.load(sys.stdin)
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    found = []
    with torch.inference_mode():
        for ids, start in texts:
            found.append(model(torch.tensor([ids])).logits[0, start - 1 : -1].float().numpy())
    numpy.save(out, numpy.concatenate(found))


if __name__ == "__main__":
    main()
