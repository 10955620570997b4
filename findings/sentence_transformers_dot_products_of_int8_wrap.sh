#!/usr/bin/env bash
# sentence-transformers: encode(precision="int8") and quantize_embeddings give vectors of a quarter of the size, in
# int8, and dot_score and semantic_search take them. The products are summed in int8 as well, and wrap around at 127:
# scores are noise between -128 and 127, a vector is rarely its own nearest neighbour, and no error or warning says so.
# Cosine similarity of the same vectors raises an error, which leads to dot_score. The same integers as float32 give the
# right order. With a few dimensions and small numbers, as a test may have, nothing wraps.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.23.0
"$folder/venv/bin/pip" install -q --disable-pip-version-check sentence-transformers==6.2.0
OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - <<'PY'
import logging
import sys

import numpy as np
import sentence_transformers
import torch
from sentence_transformers.util import cos_sim, dot_score, semantic_search
from sentence_transformers.util.quantization import quantize_embeddings

logging.disable(logging.CRITICAL)
random = np.random.default_rng(0)
vectors = random.normal(size=(200, 64)).astype(np.float32)
vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
small = quantize_embeddings(vectors, precision="int8")


def found(vectors):
    """How many vectors are their own nearest neighbour."""
    vectors = torch.from_numpy(vectors)
    hits = semantic_search(vectors, vectors, top_k=1, score_function=dot_score)
    return sum(hit[0]["corpus_id"] == number for number, hit in enumerate(hits))


def refused(vectors):
    try:
        cos_sim(vectors, vectors)
    except RuntimeError:
        return True
    return False


scores = dot_score(small, small)
right = small.astype(np.int64) @ small.astype(np.int64).T
seen = {"float32": found(vectors), "int8": found(small), "int8 as float32": found(small.astype(np.float32))}
print("sentence-transformers", sentence_transformers.__version__, "torch", torch.__version__)
print("guess: of 200 vectors each is its own nearest neighbour, in int8 nearly so")
for name, count in seen.items():
    print(f"{name}: {count} of {len(vectors)}")
print("the first vector with itself:", int(scores[0, 0]), scores.dtype, "rather than", int(right[0, 0]))
print("cos_sim of int8 raises an error:", refused(small))
wrapped = np.array_equal(scores.numpy(), right.astype(np.int8))
sys.exit(not (wrapped and seen["float32"] == 200 and seen["int8"] < 40 and seen["int8 as float32"] > 190))
PY
