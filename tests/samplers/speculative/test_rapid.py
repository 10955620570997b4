"""A drafter with a short context: the kept chunks, its equality with `model` afterwards, and the right chunk's gain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from unittest.mock import patch

import numpy as np
import pytest

from pardec.samplers import registry
from pardec.samplers.speculative.draft import rapid
from pardec.samplers.speculative.draft.rapid import Rapid, bm25
from tests.samplers.ar_toys import plain_greedy, rows, run
from tests.samplers.copying_model import induction
from tests.samplers.fake_draft_model import NEW, RAGGED, distribution, distribution_errors, near, target
from tests.samplers.fake_draft_model import named as drafting
from tests.samplers.speculative import test_enrich as enrich

SHORT = "rapid:name=near,k=3,chunk=2,chunks=1,query=2,begin=1"


def naive(chunks: Sequence[Sequence[int]], query: Sequence[int]) -> list[float]:
    """BM25 token by token, k1 = 1.5 and b = 0.75."""
    mean = sum(map(len, chunks)) / len(chunks)
    scores = []
    for chunk in chunks:
        score = 0.0
        for term in query:
            containing = sum(term in other for other in chunks)
            idf = math.log(1 + (len(chunks) - containing + 0.5) / (containing + 0.5))
            count = list(chunk).count(term)
            score += idf * count * 2.5 / (count + 1.5 * (0.25 + 0.75 * len(chunk) / mean))
        scores.append(score)
    return scores


def scores_are_those_of_the_plain_version() -> None:
    drawn = np.random.RandomState(0)
    chunks = [drawn.randint(0, 9, size) for size in (6, 6, 6, 2)]
    query = np.array([1, 1, 4, 8, 30])
    assert rapid.bm25 is bm25, "by which chunks are ranked"
    assert np.allclose(bm25(chunks, query), naive(chunks, query))  # type: ignore[arg-type]


def the_best_chunks_are_kept_in_their_order_between_beginning_and_query() -> None:
    method = Rapid(chunk=3, chunks=2, query=2, begin=1)
    prompt = np.array([50, 1, 2, 3, 8, 9, 9, 4, 5, 6, 7, 7, 8, 2, 7, 8])
    # chunks [1 2 3] [8 9 9] [4 5 6] [7 7 8] [2]: the query 7 8 asks for the fourth most, and then for the second
    assert method.short_context(prompt).tolist() == [50, 8, 9, 9, 7, 7, 8, 7, 8]
    assert method.short_context(prompt[:9]).tolist() == prompt[:9].tolist(), "no longer than what would be kept"


def chunks_of_equal_scores_are_taken_from_the_beginning() -> None:
    method = Rapid(chunk=1, chunks=2, query=1, begin=0)
    assert method.short_context(np.array([1, 2, 3, 4, 9])).tolist() == [1, 2, 9]


@pytest.mark.parametrize("shape", ["chain", "dyspec:nodes=8,children=3"])
def test_the_drafters_distributions_are_those_after_its_short_context(shape: str) -> None:
    method = registry.resolve(SHORT, "ar").draft
    assert isinstance(method, Rapid)

    def short(text: list[int]) -> object:
        prompt = max((row for row in RAGGED if text[: len(row)] == row), key=len)
        return distribution(near(), [*method.short_context(np.array(prompt)).tolist(), *text[len(prompt) :]])

    with drafting(near=near()), distribution_errors(short) as errors:  # type: ignore[arg-type]
        run(target(), f"{SHORT}+{shape}", RAGGED, NEW, temperature=1.0)
    assert max(errors) < 5e-5


def test_a_prompt_that_is_kept_whole_is_drafted_for_as_by_a_model() -> None:
    with drafting(near=near()):
        done, other = (run(target(), spec, RAGGED, NEW) for spec in ("rapid:name=near,k=4", "model:name=near,k=4"))
    assert done.trace.accepted == other.trace.accepted
    alone = run(target(), "rapid:k=4", RAGGED, 11)
    assert alone.trace.accepted == ((0, 4, 4),) * len(RAGGED), "the target drafts for itself"


@pytest.mark.seeds("arXiv:2502.20330")
def test_the_chunk_with_the_fact_drafts_better_than_any_other() -> None:
    """RAPID is lossless without enrichment; a fact is planted in 300 tokens, and the end of the prompt asks for it."""
    scores_are_those_of_the_plain_version()
    the_best_chunks_are_kept_in_their_order_between_beginning_and_query()
    chunks_of_equal_scores_are_taken_from_the_beginning()
    for eta, alpha in ((5.0, 0.1), (40.0, 1.0)):
        enrich.test_the_shifted_distribution_and_the_residual_are_those_of_the_formula(eta, alpha)
    enrich.test_a_strong_step_accepts_what_the_drafter_is_sure_of_and_none_is_exact()
    model, drawn, texts = induction(), np.random.RandomState(2), []
    for place in (36, 130, 201):  # within a chunk each
        text = drawn.permutation(model.vocab_size)[:300].tolist()
        texts.append(text + text[place : place + 4])
    expected = [plain_greedy(model, text, 12) for text in texts]
    spec = "rapid:k=4,chunk=32,chunks=1,query=4,begin=0+enrich:eta=0"
    assert registry.resolve(spec, "ar", sampling=True).exact == "distribution"
    done = run(model, spec, texts, 12)
    with patch.object(rapid, "bm25", lambda chunks, query: drawn.permutation(len(chunks)).astype(float)):
        other = run(model, spec, texts, 12)
    assert rows(done) == rows(other) == expected
    found, random = (np.mean([count for row in each.trace.accepted for count in row[1:]]) for each in (done, other))
    assert found > 2 > random
