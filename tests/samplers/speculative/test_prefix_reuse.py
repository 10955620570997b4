"""Prefix reuse with small random models, captured forwards and transformers models, against naive greedy decoding."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from pardec.models.caches.prefix_cache import PrefixCache
from pardec.models.load import load
from pardec.models.model import LanguageModel
from tests.grids import thinned
from tests.models.toys import SMALL
from tests.models.traced import captured
from tests.samplers.ar_toys import plain_greedy, prompts, rows, run, toy_ar

VOCAB = 8
BASE = prompts([50], vocab=VOCAB)[0]
GIVEN = [
    BASE[:shared] + prompts([own], seed=own, vocab=VOCAB)[0] for shared, own in [(50, 3), (20, 9), (0, 7), (33, 1)]
]


def on(model: LanguageModel) -> PrefixCache:
    cache = model.cache_prefixes(1 << 20)
    assert cache is not None
    return cache


@pytest.mark.parametrize(
    ("spec", "graphs"),
    thinned(
        product(["sequential", "lookup", "layerskip", "recycling:prefill=false", "jacobi"], [False, True]),
        lambda spec, graphs: graphs == (spec == "sequential"),
    ),
)
def test_greedy_tokens_are_those_of_a_whole_forward_each(spec: str, graphs: bool) -> None:
    model = captured(toy_ar(0, VOCAB)) if graphs else toy_ar(0, VOCAB)
    cache = on(model)
    new = 6 if graphs else 12  # each shape is traced, which takes long
    expected = [plain_greedy(toy_ar(0, VOCAB), prompt, new) for prompt in GIVEN]
    run(model, "sequential", [BASE], 4)
    for reused in ((48, 16, 0, 32), tuple((len(prompt) - 1) // 16 * 16 for prompt in GIVEN)):
        result = run(model, spec, GIVEN, new)
        assert rows(result) == expected
        assert result.reused == reused
    assert (cache.hits, cache.misses) == (6, 1)


def test_exact_in_float64() -> None:
    """In float64 the sampled tokens of long texts agree too, and the scores almost exactly."""
    model = toy_ar(3, VOCAB, dtype=torch.float64)
    plain = run(model, "lookup", GIVEN, 40, temperature=1.0)
    on(model)
    results = [run(model, "lookup", GIVEN, 40, temperature=1.0) for _ in range(2)]
    for result in results:
        assert (result.tokens == plain.tokens).all()
        assert np.allclose(result.trace.commit_score, plain.trace.commit_score, rtol=1e-5)
    assert results[0].reused == (0, 16, 0, 32)  # the others begin as the first row does
    assert sum(results[1].reused) > sum(results[0].reused)


def test_a_model_that_transformers_runs(tmp_path: Path) -> None:
    config = transformers.GPTNeoXConfig(**SMALL | {"max_position_embeddings": 128, "pad_token_id": 0})
    torch.manual_seed(0)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    model = load(tmp_path, device="cpu")
    plain = run(model, "lookup", GIVEN, 12)
    on(model)
    for reused in ((0, 16, 0, 32), (48, 16, 0, 32)):
        result = run(model, "lookup", GIVEN, 12)
        assert (result.tokens == plain.tokens).all()
        assert result.reused == reused
