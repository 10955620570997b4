"""The query stage: what is left out is as if it were not there, for its rules, every cache and every batch."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import pardec
from pardec.models.errors import SpecError
from pardec.models.model import LanguageModel
from pardec.samplers import registry
from pardec.samplers.batching import add_rows
from pardec.samplers.events import Finished
from pardec.samplers.masked import compatibility
from pardec.samplers.masked.build import fit
from pardec.samplers.masked.loop import MaskedLoop
from pardec.samplers.rng import JoinableSource
from tests.reference import naive_query as naive
from tests.samplers.toys import EOS, MASK, fill, names, prompts, request, run, same, toy

GOLDEN = Path(__file__).parents[2] / "golden"
LENGTHS, NEW = (3, 6, 1, 5), (17, 6, 23, 2)


@lru_cache
def golden(name: str) -> LanguageModel:
    return pardec.load(GOLDEN / name / "checkpoint", device="cpu", dtype="float32").language_model


def queried(got: Finished, row: int = 0) -> list[tuple[int, ...]]:
    return [tuple(positions) for positions in got.trace.fed[row]]


# --- by hand ---


def test_suffix_keeps_a_window_and_the_last_position() -> None:
    got = fill(toy(), "suffix:window=2+sequential", prompts((5,)), 12)
    first, second, last = (*range(11), 16), (*range(15), 16), tuple(range(17))
    assert queried(got) == [first] * 4 + [second] * 4 + [last] * 4
    assert got.tokens_fed == (4 * (12 + 16 + 17),)
    assert queried(fill(toy(), "suffix:window=0,tail=0+sequential", prompts((5,)), 8))[0] == tuple(range(9))
    # With a cache the window is queried when a block is entered, and a block by itself at other steps.
    got = fill(toy(), "suffix:window=2+sequential@dual", prompts((5,)), 12)
    assert queried(got)[:6] == [first, (5, 6, 7, 8), (5, 6, 7, 8), (5, 6, 7, 8), second, (9, 10, 11, 12)]
    got = fill(toy("dream"), "suffix:window=2+leftmost+sequential@prefix", prompts((5,)), 12)
    assert queried(got)[:3] == [first, (5, 6, 7, 8, 9, 10, 16), (5, 6, 7, 8, 9, 10, 16)]


class Constant:
    """The same number for everything."""

    def __init__(self, value: float) -> None:
        self.value = value

    def uniform(self, rows: np.ndarray, step: np.ndarray, positions: Tensor, purpose: str, width: int = 0) -> Tensor:
        return torch.full(positions.shape, self.value, dtype=torch.float64)


@pytest.mark.parametrize(
    ("uniform", "stay"),
    # 2 N(d / 2; 0, 1) for d = 0, 1, ...: 0.798, 0.704, 0.484, 0.259, 0.108, 0.0351, 0.0089, 0.0017; the window ends.
    [(0.9, 0), (0.75, 1), (0.5, 2), (0.3, 3), (0.2, 4), (0.1, 5), (0.03, 6), (0.005, 7), (0.0001, 8)],
)
def test_dpad_keeps_a_mask_with_the_density_of_its_distance(uniform: float, stay: int) -> None:
    got = fill(toy(), "dpad:k=4,scale=2,window=8+sequential", prompts((3,)), 16, source=Constant(uniform))
    assert queried(got)[0] == tuple(range(3 + 4 + stay))


def test_tokens_that_were_given_behind_the_block_stay() -> None:
    row = [1, 2, *[MASK] * 8, 3, MASK, MASK, MASK]
    got = run(toy(), "suffix:window=0,tail=0+sequential", request([row], [2]))
    assert queried(got)[0] == (0, 1, 2, 3, 4, 5, 10)
    assert got.tokens[0, 10] == 3


# --- the naive version: masks are deleted ---


@pytest.mark.parametrize("spec", ["suffix:window=3,tail=1", "suffix:window=0,tail=2", "dpad:k=2.5,scale=2,window=9"])
@pytest.mark.parametrize("name", ["llada", "dream"])
@pytest.mark.seeds("arXiv:2508.14148")
def test_each_is_its_naive_version_step_by_step(name: str, spec: str) -> None:
    """A plain version deletes the masks and runs the rest through one full forward with its positions."""
    model = golden(name)
    mask, vocab = model.decoding_config.mask_id, model.vocab_size
    drawn, new, size = np.random.RandomState(3), 21, 6
    for tau, length in ((0.05, 5), (0.15, 9)):
        prompt = drawn.randint(3, vocab - 10, length).tolist()
        row = [*prompt, *[mask] * new]
        got = run(model, f"{spec}+threshold:tau={tau}", request([row], [length], block_length=size))
        values = {key: float(value) for key, value in (part.split("=") for part in spec.split(":")[1].split(","))}
        if spec.startswith("dpad"):
            rule = naive.dpad(values["k"], values["scale"], int(values["window"]), 100)
        else:
            rule = naive.suffix(int(values["window"]), int(values["tail"]))
        tokens, when, fed = naive.decode(model, row, length, size, tau, rule)
        assert got.tokens[0].tolist() == tokens
        assert got.trace.commit_step[0].tolist() == when
        assert [list(positions) for positions in got.trace.fed[0]] == fed
        assert got.tokens_fed[0] == sum(map(len, fed)) < len(fed) * len(row)


# --- as if it were not there ---


@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize(
    "cache", ["none", "dual", "prefix", "dkv", "vicinity:before=2,after=1,warmup=0", "spa", "mlcache"]
)
@pytest.mark.covers(1)
def test_no_token_depends_on_masks_that_are_left_out(family: str, cache: str) -> None:
    """Longer canvases whose further masks are all left out give the same blocks, whatever is cached."""
    spec = f"suffix:window=2,tail=0+threshold:tau=0.3@{cache}"
    if cache == "spa":  # computes a share of the answer, so that more of it is more to compute
        spec = spec.replace("spa", "spa:response=1")
    short, long = (fill(toy(family, sharp=1.2), spec, prompts((5,)), new) for new in (14, 40))
    stop = 5 + 12
    assert short.tokens[0, :stop].tolist() == long.tokens[0, :stop].tolist()
    assert short.trace.commit_step[0, :stop].tolist() == long.trace.commit_step[0, :stop].tolist()


@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize("cache", ["dual:refresh=1", "prefix:refresh=1", "spa:refresh=1"])
@pytest.mark.parametrize("head", ["suffix:window=2", "dpad:k=3,window=6"])
@pytest.mark.covers(2)
def test_a_cache_that_refreshes_always_changes_nothing(family: str, cache: str, head: str) -> None:
    plain, cached = (
        fill(toy(family, sharp=1.2), f"{head}+threshold:tau=0.3@{name}", prompts(LENGTHS), NEW, cfg=0.5)
        for name in ("none", cache)
    )
    assert plain.tokens.tolist() == cached.tokens.tolist()
    assert plain.trace.commit_step.tolist() == cached.trace.commit_step.tolist()


REST = (
    "sequential",
    "dsb+threshold:tau=0.3",
    "adablock:delimiters=1-2-3-4+threshold:tau=0.3",
    "wino+threshold:tau=0.3",
    "remdm+threshold:tau=0.3",
    "lopa+threshold:tau=0.3",
    "prophet+threshold:tau=0.3",
)


@pytest.mark.parametrize("cache", ["none", "dual", "prefix", "dkv"])
@pytest.mark.parametrize("rest", REST)
@pytest.mark.covers(1)
def test_a_window_that_reaches_the_end_changes_nothing(rest: str, cache: str) -> None:
    model, options = toy("dream", sharp=1.2), {"stop_ids": (EOS,)}
    plain, wide = (
        fill(model, f"{head}{rest}@{cache}", prompts(LENGTHS), NEW, **options) for head in ("", "suffix:window=99+")
    )
    for row in range(len(NEW)):
        assert same(plain, row, wide, row)


@pytest.mark.parametrize("name", names("query"))
@pytest.mark.parametrize("cache", ["none", "dual", "prefix"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.covers(2)
def test_freedave_keeps_every_token(name: str, cache: str, temperature: float) -> None:
    """Hypotheses that are a block further leave out what the row will there."""
    both = [
        fill(
            toy("llada", sharp=1.2), f"{name}+{head}sequential@{cache}", prompts(LENGTHS), NEW, temperature=temperature
        )
        for head in ("", "freedave:drafts=3+")
    ]
    assert both[0].tokens.tolist() == both[1].tokens.tolist()
    assert sum(both[1].nfe) < sum(both[0].nfe)


# --- batches ---


@pytest.mark.parametrize("name", names("query"))
@pytest.mark.parametrize(
    "rest", ["dsb+threshold:tau=0.3@dual", "wino+threshold:tau=0.3@none", "sequential@spa", "klass@dkv"]
)
@pytest.mark.parametrize("options", [{}, {"temperature": 0.8, "cfg": 1.5}], ids=["greedy", "guided"])
@pytest.mark.covers(2)
def test_a_row_alone_is_the_row_in_a_ragged_batch(name: str, rest: str, options: dict[str, float]) -> None:
    given, model = prompts(LENGTHS), toy("dream", sharp=1.2)
    whole = fill(model, f"{name}+{rest}", given, NEW, **options)
    for row, prompt in enumerate(given):
        alone = fill(model, f"{name}+{rest}", [prompt], NEW[row], seeds=[100 + row], **options)
        assert same(alone, 0, whole, row)


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


# --- what it costs, and what is refused ---


def test_a_sampler_without_the_stage_pays_nothing() -> None:
    canvas = request([[1, 2, *[MASK] * 12]], [2])
    for spec in ("threshold", "threshold@dual"):
        loop = MaskedLoop(toy(), registry.resolve(spec), canvas)
        loop.step()
        assert loop.forward.visible is None
        assert loop.recorder.history[0].positions is None


def test_slots_are_those_of_what_is_left() -> None:
    """A forward reads as many keys as there are visible positions."""
    loop = MaskedLoop(toy(), registry.resolve("suffix:window=2+threshold@dual"), request([[1, 2, *[MASK] * 20]], [2]))
    loop.step()
    plan = loop.forward.groups[0].plan
    assert plan.positions.tolist() == [[*range(8), 21]]
    assert plan.slots.tolist() == [list(range(9))]
    assert plan.lengths.tolist() == [9]
    assert plan.uniform == 9


@pytest.mark.parametrize("name", names("query"))
@pytest.mark.parametrize(("family", "cache"), [("sdar", "block"), ("wedlm", "window"), ("nemotron", "causal")])
def test_models_that_see_nothing_behind_the_block_refuse_it(name: str, family: str, cache: str) -> None:
    with pytest.raises(SpecError, match="which never sees them"):
        fill(toy(family), f"{name}+threshold@{cache}", prompts((3,)), 8)


def test_sliding_windows_refuse_it() -> None:
    """They count slots, which are closed up."""
    model = toy()
    model.decoder.config = replace(model.decoder.config, window=4)
    with pytest.raises(SpecError, match="layers with sliding windows"):
        fill(model, "suffix+threshold", prompts((3,)), 8)


def test_two_of_them_are_refused_and_so_are_values_out_of_range() -> None:
    with pytest.raises(SpecError, match="one is allowed"):
        registry.resolve("suffix+dpad+threshold")
    for bad in ("suffix:window=-1", "suffix:tail=-1", "dpad:k=-1", "dpad:scale=-1", "dpad:window=-2"):
        with pytest.raises(SpecError, match="must be at least 0"):
            registry.resolve(f"{bad}+threshold")


@pytest.mark.parametrize(
    ("spec", "message"), [("suffix+threshold", "suffix leaves out"), ("threshold@spa", "spa keeps")]
)
def test_images_refuse_it(spec: str, message: str) -> None:
    asked = request([[3, MASK]], [1], conditions=(object(),))
    with pytest.raises(SpecError, match=message):
        compatibility.check(registry.resolve(spec), request=asked)
