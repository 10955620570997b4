"""generation_config.json of AR models: greedy tokens equal transformers', or a key is refused by name."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, GenerationConfig, LlamaConfig, LlamaForCausalLM, LogitsProcessor

import pardec
from pardec.requests.generation_config import FOLLOWED, LEFT, REFUSED

NEW, END = 12, 95
PROMPTS = [list(range(3, 20)), [1], list(range(40, 44))]


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, bos_token_id=1, eos_token_id=END, pad_token_id=0,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    for weight in model.parameters():
        if weight.ndim > 1:
            torch.nn.init.normal_(weight, std=0.2)
    folder = tmp_path_factory.mktemp("generation") / "model"
    model.save_pretrained(folder)
    return folder


def settled(weights: Path, folder: Path, **keys: Any) -> Path:
    """The checkpoint with these keys in its generation_config.json."""
    folder.mkdir()
    for file in weights.iterdir():
        (folder / file.name).symlink_to(file) if file.name != "generation_config.json" else None
    ids = {"bos_token_id": 1, "eos_token_id": END, "pad_token_id": 0}
    (folder / "generation_config.json").write_text(json.dumps({**ids, **keys}))
    return folder


@lru_cache(maxsize=1)
def theirs(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def reference(folder: Path, prompt: list[int], **arguments: Any) -> list[int]:
    ids = torch.tensor([prompt])
    rows = theirs(folder).generate(ids, attention_mask=torch.ones_like(ids), **{"max_new_tokens": NEW, **arguments})
    found: list[int] = rows[0, len(prompt) :].tolist()
    return found


CASES: dict[str, dict[str, Any]] = {
    "suppressed": {"suppress_tokens": [69, 16, 77, 500, -1]},
    "suppressed at the beginning": {"begin_suppress_tokens": [69, 77]},
    "penalty": {"repetition_penalty": 1.3},
    "no pairs twice": {"no_repeat_ngram_size": 2},
    "words": {"bad_words_ids": [[69], [68, 86], [END]]},
    "biased": {"sequence_bias": [[[16], 9.0], [[16, 5], -4.5]], "repetition_penalty": 1.4},
    "a forced start": {"forced_bos_token_id": 33, "begin_suppress_tokens": [50, 51]},
    "a forced end": {"forced_eos_token_id": END},
    "several forced ends": {"forced_eos_token_id": [END, 7]},
    "an early end, put off": {"min_length": 22, "sequence_bias": [[[END], 1000.0]]},
    "new tokens before an end": {"min_new_tokens": 5, "min_length": 1, "sequence_bias": [[[END], 1000.0]]},
    "more new tokens than there are": {"min_new_tokens": 50, "sequence_bias": [[[END], 1000.0]]},
    "together": {"suppress_tokens": [69], "no_repeat_ngram_size": 1, "repetition_penalty": 1.2, "min_length": 6},
    "left to the call": {"temperature": 0.7, "top_k": 3, "max_length": 4, "num_beams": 1, "guidance_scale": 1.0},
}


@pytest.mark.parametrize("case", CASES)
def test_tokens_are_those_of_transformers(case: str, weights: Path, tmp_path: Path) -> None:
    folder = settled(weights, tmp_path / "model", **CASES[case])
    expected = [reference(folder, prompt) for prompt in PROMPTS]
    model = pardec.load(folder, device="cpu", dtype="float32")
    for sampler in ("sequential", "lookup:k=3"):
        together = model.generate(input_ids=PROMPTS, max_new_tokens=NEW, sampler=sampler)
        assert together.tokens == expected
    served = model.serve_batch([{"input_ids": prompt} for prompt in PROMPTS], max_new_tokens=NEW, batch_size=2)
    assert {row.index: row.tokens for row in served} == dict(enumerate(expected))


def test_arguments_of_the_call_win(weights: Path, tmp_path: Path) -> None:
    plain = pardec.load(weights, device="cpu").generate(input_ids=PROMPTS[:1], max_new_tokens=NEW)
    keys = {"repetition_penalty": 1.5, "min_new_tokens": 3}
    model = pardec.load(settled(weights, tmp_path / "model", **keys), device="cpu")
    assert model.generate(input_ids=PROMPTS[:1], max_new_tokens=NEW).tokens != plain.tokens
    free = model.generate(input_ids=PROMPTS[:1], max_new_tokens=NEW, repetition_penalty=1.0, min_new_tokens=0)
    assert free.tokens == plain.tokens
    own = model.generate(input_ids=PROMPTS[:1], max_new_tokens=NEW, repetition_penalty=1.2)
    assert own.tokens == [reference(weights, PROMPTS[0], repetition_penalty=1.2)]


def test_what_a_caller_allows_and_processors_are_added(weights: Path, tmp_path: Path) -> None:
    folder = settled(weights, tmp_path / "model", suppress_tokens=[7], no_repeat_ngram_size=1)
    model = pardec.load(folder, device="cpu")
    choices: list[Any] = [[5, 7], [6, 7]]
    assert model.generate(input_ids=[[9, 8]], max_new_tokens=2, allowed=choices).tokens == [[5, 6]]
    with pytest.raises(pardec.SpecError, match="allows no token at index 0 of row 0"):
        model.generate(input_ids=[[9, 8]], max_new_tokens=2, allowed=[[7]])

    class NotFive(LogitsProcessor):
        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            return scores.index_fill(1, torch.tensor([5]), -torch.inf)

    made = model.generate(input_ids=[[9, 8]], max_new_tokens=2, allowed=[[5, 6], [6, 10]], logits_processor=[NotFive()])
    assert made.tokens == [[6, 10]]


def test_without_the_file_config_json_is_read(weights: Path, tmp_path: Path) -> None:
    folder = settled(weights, tmp_path / "model")
    (folder / "generation_config.json").unlink()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").unlink()
    (folder / "config.json").write_text(json.dumps({**config, "repetition_penalty": 1.3}))
    model = pardec.load(folder, device="cpu", dtype="float32")
    assert model.generate(input_ids=PROMPTS[:1], max_new_tokens=NEW).tokens == [reference(folder, PROMPTS[0])]


@pytest.mark.parametrize("key", REFUSED)
def test_what_is_not_built_is_refused_by_name(key: str, weights: Path, tmp_path: Path) -> None:
    values = {"watermarking_config": {"bias": 2.0}, "exponential_decay_length_penalty": [5, 1.1], "dola_layers": "low"}
    folder = settled(weights, tmp_path / "model", **{key: values.get(key, 2)})
    model = pardec.load(folder, device="cpu")
    with pytest.raises(pardec.PardecError, match=key):
        model.generate(input_ids=PROMPTS[:1], max_new_tokens=NEW)


@pytest.mark.parametrize(("key", "what"), FOLLOWED.items())
def test_a_value_of_another_kind_is_refused_by_name(key: str, what: str, weights: Path, tmp_path: Path) -> None:
    model = pardec.load(settled(weights, tmp_path / "model", **{key: {"a": [1]}}), device="cpu")
    with pytest.raises(pardec.PardecError, match=f"sets {key} to .*, and it has to be {what}"):
        model.generate(input_ids=PROMPTS[:1], max_new_tokens=NEW)


def test_every_key_of_transformers_is_known() -> None:
    keys = {key for key in vars(GenerationConfig()) if not key.startswith("_")}
    assert keys == {*FOLLOWED, *REFUSED, *LEFT}


def test_masked_models_have_none_of_these_rules(tmp_path: Path) -> None:
    """The authors' code of masked models reads none of these keys."""
    source = pardec.load("tiny-dream", device="cpu")
    folder = settled(Path(str(source.path)), tmp_path / "model", repetition_penalty=5.0, eos_token_id=3)
    prompt = "Tom has 18 cups. He loses 4. How many cups does Tom have now?"
    assert pardec.load(folder, device="cpu").generate(prompt).tokens == source.generate(prompt).tokens
