"""Logits of llama.cpp for given tokens, by llama-cpp-python: `llama_cpp_logits.py FILE.gguf OUT.npy < texts.json`.

`texts` is a list of [ids, start]; OUT.npy has float32 [T, V], the logits before each token from `start` on.
"""

import json
import sys

import numpy
from llama_cpp import Llama


def main() -> None:
    model, out = sys.argv[1:]
    texts = json.load(sys.stdin)
    longest = max(len(ids) for ids, _ in texts)
    engine = Llama(
        model, n_ctx=longest, n_batch=longest, logits_all=True, n_threads=1, n_threads_batch=1, verbose=False
    )
    found = []
    for ids, start in texts:
        engine.reset()
        engine.eval(ids)
        found.append(engine.scores[start - 1 : len(ids) - 1].copy())
    numpy.save(out, numpy.concatenate(found))


if __name__ == "__main__":
    main()
