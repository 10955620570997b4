"""`oracle`: reproduces the reference's text, commits all that agrees, and no select needs fewer forwards."""

from __future__ import annotations

import numpy as np
import pytest

from pardec.models.errors import SpecError
from pardec.samplers.registry import resolve
from tests.grids import chequered
from tests.samplers.toys import BLOCK, EOS, FAMILIES, biased, fill, prompts, toy

LENGTHS, NEW = (3, 6, 1), (10, 12, 7)


@pytest.mark.parametrize(
    ("cache", "family", "of"),
    chequered(["none", "prefix", "dual"], list(FAMILIES), ["sequential", "threshold:tau=0.4", "factor"]),
)
@pytest.mark.covers(1)
def test_the_text_is_the_reference_s(of: str, family: str, cache: str) -> None:
    for seed in range(2):
        model, given = toy(family, seed=seed, sharp=1.2), prompts(LENGTHS, seed=seed)
        want = fill(model, of, given, NEW)
        got = fill(model, f'oracle:of="{of}"@{cache}', given, NEW)
        assert (got.tokens == want.tokens).all()
        assert all(n <= new for n, new in zip(got.nfe, NEW, strict=True))


def test_it_needs_no_more_forwards_than_what_it_is_measured_by() -> None:
    for seed in range(3):
        model, given = toy("llada", seed=seed, sharp=1.2), prompts(LENGTHS, seed=seed)
        floor, whole = (fill(model, spec, given, NEW).nfe for spec in ("oracle", "sequential"))
        assert all(n <= m for n, m in zip(floor, whole, strict=True))
        assert sum(floor) > sum(-(-new // BLOCK) for new in NEW), "what does not agree is not committed"


def test_what_agrees_is_committed_and_nothing_else() -> None:
    """A model that always predicts token 3 agrees everywhere at once: one forward per block."""
    got = fill(biased(toy(sharp=0.01), 3, 30.0), "oracle", prompts(LENGTHS), NEW)
    assert got.nfe == tuple(-(-new // BLOCK) for new in NEW)


def test_it_stops_where_the_reference_stops() -> None:
    model, given = biased(toy(sharp=1.2), EOS, 3.0), prompts(LENGTHS)
    want = fill(model, "sequential+eos", given, NEW, stop_ids=(EOS,))
    got = fill(model, "oracle+eos", given, NEW, stop_ids=(EOS,))
    assert "stop" in want.reasons
    for row, start in enumerate(LENGTHS):
        ends = np.flatnonzero(want.tokens[row, start:] == EOS)
        cut = start + (int(ends[0]) + 1 if len(ends) else NEW[row])
        assert (got.tokens[row, :cut] == want.tokens[row, :cut]).all()


def test_measuring_it_against_itself_is_refused() -> None:
    with pytest.raises(SpecError, match="itself"):
        resolve('oracle:of="oracle+eos"')
    assert resolve("oracle").exact == "greedy"
    assert resolve("oracle:of=factor").exact == "relaxed"


@pytest.mark.parametrize("of", ["sequentiel", "threshold:tau=2", "fixed@dkv_greedy"])
def test_a_reference_that_cannot_be_is_refused_with_the_spec(of: str) -> None:
    """Refused before the first forward, since a stream or a comparison would already have begun."""
    with pytest.raises(SpecError):
        resolve(f'oracle:of="{of}"')
