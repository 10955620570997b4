#!/usr/bin/env bash
# sentence-transformers: a model that ends in Normalize gives vectors of length 1, for which dot products are cosines,
# and many are used with dot products, in databases of vectors too. truncate_dim, for models whose first dimensions are
# good by themselves, cuts after the last module: the vectors have other lengths then, each its own, and the order by
# dot product is another one than by cosine. normalize_embeddings=True of encode is applied after the cut, so that two
# ways to ask for unit vectors, one in the model and one in the call, differ as soon as they are cut. No warning names
# it.
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
from sentence_transformers.models import Normalize, Pooling, Transformer
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
texts = [f"w{first} w{second}" for first in range(8) for second in range(8, 16)]
model = SentenceTransformer(modules=[Transformer(folder), Pooling(16), Normalize()], similarity_fn_name="dot")
whole, cut = model.encode(texts), model.encode(texts, truncate_dim=4)
asked = model.encode(texts, truncate_dim=4, normalize_embeddings=True)


def order(vectors):
    return (-vectors @ vectors.T).argsort(axis=1)[:, :5]


lengths = {name: np.linalg.norm(v, axis=1) for name, v in {"whole": whole, "cut": cut, "asked": asked}.items()}
print("sentence-transformers", sentence_transformers.__version__)
print("guess: a model that normalizes gives vectors of length 1, cut to four dimensions too")
for name, length in lengths.items():
    print(f"seen: {name}: lengths from {length.min():.2f} to {length.max():.2f}")
itself = float(np.mean(order(cut)[:, 0] == np.arange(len(texts))))
other = float(np.mean(order(cut)[:, 1] != order(asked)[:, 1]))
print(f"by {model.similarity_fn_name} a cut text is its own nearest in {itself:.0%} of cases")
print(f"the second by the two kinds of cut vectors differs in {other:.0%}")
unit = [bool(np.allclose(length, 1, atol=1e-4)) for length in lengths.values()]
sys.exit(unit != [True, False, True] or itself > 0.9)
PY
