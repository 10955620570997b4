"""The contract of every query stage: caches, hypotheses, joining rows, and refusals by name."""

from __future__ import annotations

import pytest

from pardec.models.errors import SpecError
from pardec.samplers import registry
from pardec.samplers.batching import add_rows
from pardec.samplers.masked.compatibility import fit
from pardec.samplers.masked.loop import MaskedLoop
from pardec.samplers.rng import JoinableSource
from tests.samplers.toys import MASK, fill, names, prompts, request, same, toy

LENGTHS, NEW = (3, 6, 1, 5), (17, 6, 23, 2)


@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize("cache", ["dual:refresh=1", "prefix:refresh=1", "spa:refresh=1"])
@pytest.mark.parametrize("head", names("query"))
@pytest.mark.covers(2)
def test_a_cache_that_refreshes_always_changes_nothing(family: str, cache: str, head: str) -> None:
    plain, cached = (
        fill(toy(family, sharp=1.2), f"{head}+threshold:tau=0.3@{name}", prompts(LENGTHS), NEW, cfg=0.5)
        for name in ("none", cache)
    )
    assert plain.tokens.tolist() == cached.tokens.tolist()
    assert plain.trace.commit_step.tolist() == cached.trace.commit_step.tolist()


@pytest.mark.parametrize("name", names("query"))
@pytest.mark.parametrize("cache", ["none", "dual", "prefix"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.covers(2)
def test_freedave_keeps_every_token(name: str, cache: str, temperature: float) -> None:
    """Hypotheses that are one block further leave out the masks that the row will leave out there."""
    both = [
        fill(
            toy("llada", sharp=1.2), f"{name}+{head}sequential@{cache}", prompts(LENGTHS), NEW, temperature=temperature
        )
        for head in ("", "freedave:drafts=3+")
    ]
    assert both[0].tokens.tolist() == both[1].tokens.tolist()
    assert sum(both[1].nfe) < sum(both[0].nfe)


@pytest.mark.parametrize(
    "name", [*names("query"), "suffix:window=2+threshold:tau=0.3@spa", "threshold:tau=0.3@mlcache"]
)
def test_rows_that_join_give_what_they_give_alone(name: str) -> None:
    spec = name if "@" in name else f"{name}+threshold:tau=0.3@dual"
    model, given = toy("llada", sharp=1.2), prompts(LENGTHS)
    sampler = fit(registry.resolve(spec), model)

    def loop(rows: list[int], columns: int = 0) -> MaskedLoop:
        canvases = [[*given[row], *[MASK] * NEW[row]] for row in rows]
        source = JoinableSource([100 + row for row in rows])
        return MaskedLoop(
            model, sampler, request(canvases, [LENGTHS[row] for row in rows], source=source), columns=columns
        )

    first, later = loop([0]), loop([1, 2, 3], columns=24)
    for _ in range(2):
        first.step()
    first.put(add_rows(first, 3), later)
    while len(first.canvas):
        first.step()
        list(first.retire())
    for row in range(4):
        got = first.finished(row)
        alone = fill(model, spec, [given[row]], NEW[row], seeds=[100 + row])
        assert same(alone, 0, got, 0)


def test_a_sampler_without_the_stage_pays_nothing() -> None:
    canvas = request([[1, 2, *[MASK] * 12]], [2])
    for spec in ("threshold", "threshold@dual"):
        loop = MaskedLoop(toy(), registry.resolve(spec), canvas)
        loop.step()
        assert loop.forward.visible is None
        assert loop.recorder.history[0].positions is None


@pytest.mark.parametrize("name", names("query"))
@pytest.mark.parametrize(
    ("family", "cache"), [("sdar", "block"), ("wedlm", "window"), ("nemotron", "causal"), ("sdlm", "next_sequence")]
)
def test_models_that_see_nothing_after_the_block_refuse_it(name: str, family: str, cache: str) -> None:
    with pytest.raises(SpecError, match="which never sees them"):
        fill(toy(family), f"{name}+threshold@{cache}", prompts((3,)), 8)


def test_two_of_them_are_refused() -> None:
    with pytest.raises(SpecError, match="one is allowed"):
        registry.resolve("suffix+dpad+threshold")
