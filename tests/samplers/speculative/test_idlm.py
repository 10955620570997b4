"""`idlm`: masks after a draft, in the forward that verifies it, predict the next draft."""

from __future__ import annotations

import pytest

from pardec.models.errors import SpecError
from pardec.samplers import registry
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


def test_what_has_no_mask_or_drafts_trees_is_refused() -> None:
    with pytest.raises(SpecError, match="idlm: toy is loaded as a causal model without a mask token"):
        run(toy_ar(), "idlm", [[1, 2]], 4)
    with pytest.raises(SpecError, match="idlm: mask=9 is not one of the 5 ids of toy"):
        run(toy_ar(), "idlm:mask=9", [[1, 2]], 4)
    with pytest.raises(SpecError, match="idlm drafts a chain, and beam drafts trees"):
        registry.resolve("idlm:mask=4+beam")
    with pytest.raises(SpecError, match="idlm: k must be at least 1, got 0"):
        registry.resolve("idlm:mask=4,k=0")
