#!/usr/bin/env bash
# sentence-transformers: encode returns a vector per text, or with output_value="token_embeddings" one per token, as for
# late interaction or a choice of tokens. Its other options go with both, as it seems: precision is followed for tokens
# as for texts, normalize_embeddings and truncate_dim are not. A token's vector is as long as the model made it and has
# all its dimensions, without a word; so are dot products of tokens, which are then no cosines. A model that was made
# with truncate_dim=4 says that its vectors have four dimensions, and its tokens' have all. output_value=None, which
# returns both, follows truncate_dim for the text's vector and normalize_embeddings for neither.
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
texts = ["w1 w2 w3", "w4"]
model = SentenceTransformer(modules=[Transformer(folder), Pooling(16)])


def seen(value, **options):
    """Whether vectors have length 1, and how many dimensions they have."""
    vectors = model.encode(texts, output_value=value, **options)[0]
    vectors = torch.as_tensor(vectors).float().reshape(-1, vectors.shape[-1])
    return bool(torch.allclose(vectors.norm(dim=-1), torch.ones(len(vectors)))), vectors.shape[-1]


print("sentence-transformers", sentence_transformers.__version__)
print("guess: both options are followed for vectors of texts and of tokens, or one is refused")
found = {}
for value in ("sentence_embedding", "token_embeddings"):
    found[value] = seen(value, normalize_embeddings=True)[0], seen(value, truncate_dim=4)[1]
    print(f"seen: {value}: normalized {found[value][0]}, dimensions with truncate_dim=4: {found[value][1]}")
kind = model.encode(texts, output_value="token_embeddings", precision="binary")[0]
print("precision='binary' of tokens:", kind.dtype, kind.shape)
both = model.encode(texts, output_value=None, normalize_embeddings=True)[0]["sentence_embedding"]
print("output_value=None, normalized: the vector's length is", round(float(both.norm()), 2))
cut = SentenceTransformer(modules=[Transformer(folder), Pooling(16)], truncate_dim=4)
tokens = cut.encode(texts, output_value="token_embeddings")[0].shape[-1]
print("truncate_dim=4 of the model:", cut.get_sentence_embedding_dimension(), "dimensions, tokens have", tokens)
right = found == {"sentence_embedding": (True, 4), "token_embeddings": (False, 16)}
sys.exit(not (right and kind.dtype == np.int8 and abs(float(both.norm()) - 1) > 0.1 and tokens == 16))
PY
