"""`idlm`: masks after a draft, in the forward that verifies it, predict the next draft."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import pardec
from pardec.models.errors import SpecError
from pardec.samplers import registry
from tests.models.families.test_families import published, rewrite
from tests.reference import naive_idlm as naive
from tests.samplers.ar_toys import plain_greedy, rows, run, toy_ar

MASK = 4


@pytest.mark.parametrize("k", [1, 3, 5])
@pytest.mark.seeds("arXiv:2604.11035")
def test_tokens_and_forwards_are_those_of_whole_forwards(k: int) -> None:
    """The plain version feeds the whole text, the draft and the masks at every forward, without a cache."""
    taken, begun = 0, 0
    for seed in range(6):
        model, prompt = toy_ar(seed, sharp=0.3), [1, 2, 3]
        tokens, accepted, fed = naive.decode(model, prompt, 24, MASK, k)
        got = run(model, f"idlm:mask={MASK},k={k}", [prompt], 24)
        assert rows(got) == [tokens]
        assert got.nfe == (1 + len(accepted),)
        assert got.tokens_fed == (fed,)
        taken, begun = taken + sum(accepted), begun + accepted.count(0)
    assert taken, "no draft was ever accepted: the test shows nothing"
    assert begun > 6, "no draft was ever refused: the test shows nothing"


def test_greedy_text_is_kept_in_a_ragged_batch() -> None:
    model, texts, new = toy_ar(3, sharp=0.3), [[1, 2, 3], [2], [3, 3, 1, 0, 2]], (11, 17, 5)
    done = run(model, f"idlm:mask={MASK},k=3", texts, new)
    assert rows(done) == [plain_greedy(model, text, count) for text, count in zip(texts, new, strict=True)]


def test_a_folder_in_the_layout_of_sdar_gives_the_greedy_text_of_qwen3(tmp_path: Path) -> None:
    reference = published("Qwen3", tmp_path, num_key_value_heads=2)
    rewrite(tmp_path, model_type="sdar", architectures=["SDARForCausalLM"], mask_token_id=60)
    model = pardec.load(tmp_path, device="cpu", dtype="float32", attention="causal")
    text = [5, 9, 3, 7]
    done = model.generate(input_ids=[text], max_new_tokens=16, stop_ids=[], sampler="idlm:mask=60")
    with torch.no_grad():  # each token is the likeliest after those before it
        expected = reference(torch.tensor([text + done.tokens[0]])).logits[0, 3:-1].argmax(-1)
    assert done.tokens[0] == expected.tolist()


def test_what_has_no_mask_or_drafts_trees_is_refused() -> None:
    with pytest.raises(SpecError, match="idlm: toy is loaded as a causal model without a mask token"):
        run(toy_ar(), "idlm", [[1, 2]], 4)
    with pytest.raises(SpecError, match="idlm: mask=9 is not one of the 5 ids of toy"):
        run(toy_ar(), "idlm:mask=9", [[1, 2]], 4)
    with pytest.raises(SpecError, match="idlm drafts a chain, and beam drafts trees"):
        registry.resolve("idlm:mask=4+beam")
    with pytest.raises(SpecError, match="idlm: k must be at least 1, got 0"):
        registry.resolve("idlm:mask=4,k=0")
