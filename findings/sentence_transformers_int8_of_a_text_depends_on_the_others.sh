#!/usr/bin/env bash
# sentence-transformers: encode(precision="int8") gives small vectors, as the types of other libraries do: by a scale.
# The scale, one per dimension, is taken from the texts of that very call, and is not returned. The same text has other
# integers beside other texts: queries and documents that are encoded in two calls, or documents in two parts, are on
# different scales, and one text differs from itself by up to a quarter of the range. A single text is refused, a call
# with 100 texts or more is not even logged about. uint8 does the same; binary has no scale, and is the same in each
# call.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.23.0 numpy==2.4.6
"$folder/venv/bin/pip" install -q --disable-pip-version-check sentence-transformers==6.2.0
OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 TQDM_DISABLE=1 "$folder/venv/bin/python" - "$folder" <<'PY'
import logging
import sys

import numpy as np
import sentence_transformers
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Pooling, Transformer
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

logging.disable(logging.CRITICAL)
folder = sys.argv[1]
words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"w{number}" for number in range(40))]
tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer.post_processor = processors.TemplateProcessing(
    single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
)
torch.manual_seed(0)
size = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
BertModel(BertConfig(vocab_size=44, max_position_embeddings=64, initializer_range=0.3, **size)).save_pretrained(folder)
special = {"unk_token": "[UNK]", "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=64, **special).save_pretrained(folder)
texts = [f"w{first} w{second} w{third}" for first in range(8) for second in range(8) for third in range(8)]
model = SentenceTransformer(modules=[Transformer(folder), Pooling(16)])
short = texts[:120]
found = {}
for precision in ("float32", "int8", "uint8", "binary"):
    all_texts = model.encode(texts, precision=precision)[:120].astype(np.float32)
    part = model.encode(short, precision=precision).astype(np.float32)
    differences = np.abs(part - all_texts).max(axis=1)
    found[precision] = float(np.mean(differences < 1e-4)), differences.max()
    share, largest = found[precision]
    print(f"seen: {precision}: the same vector in both calls {share:.0%}, largest difference {largest:.3g}")
print("sentence-transformers", sentence_transformers.__version__)
print("guess: a text has the same int8 vector beside 120 and beside 512 texts, of which it is one")
same = {precision: share for precision, (share, _) in found.items()}
expected = same["float32"] == same["binary"] == 1 and same["int8"] < 0.1 and same["uint8"] < 0.1
sys.exit(not (expected and found["int8"][1] > 20))
PY
