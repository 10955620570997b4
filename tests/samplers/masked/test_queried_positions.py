"""The caches that do not query one span: what they query, that it is enough, and where they change nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import pardec
from pardec.models.errors import SpecError
from pardec.samplers import registry
from pardec.samplers.events import Finished, Started, Step
from pardec.samplers.masked.loop import decode
from tests.reference import naive_caches as naive
from tests.samplers.spec_checks import refused_specs
from tests.samplers.toys import BLOCK, FAMILIES, MASK, PAD, fill, prompts, request, same, toy

LENGTHS, NEW = (5, 2, 9), (10, 7, 4)
ALL = tuple(range(15))


class Descending:
    """Numbers that fall in the given order of positions, at every step and for every purpose."""

    def __init__(self, order: Sequence[int]) -> None:
        self.rank = {position: at for at, position in enumerate(order)}

    def uniform(self, rows: np.ndarray, step: np.ndarray, positions: Tensor, purpose: str, width: int = 0) -> Tensor:
        fallen = [[1 - (1 + self.rank.get(p, 97)) / 100 for p in row] for row in positions.tolist()]
        return torch.tensor(fallen, dtype=torch.float64)


def queried(got: Finished, row: int = 0) -> list[tuple[int, ...]]:
    return [tuple(positions) for positions in got.trace.fed[row]]


# --- by hand ---


def in_order(family: str, cache: str, order: list[int], **options: Any) -> list[tuple[int, ...]]:
    spec = f"random+fixed:steps={options.pop('steps')}@{cache}"
    got = fill(toy(family, sharp=1.2), spec, prompts((5,), seed=3), 8, source=Descending(order), **options)
    return queried(got)


def test_the_vicinity_of_the_block_is_queried_after_the_warmup() -> None:
    spec = "sequential@vicinity:before=2,after=1,warmup=2"
    got = fill(toy("llada", sharp=1.2), spec, prompts((5,)), 10)
    first, second, last = range(3, 10), range(7, 14), range(11, 15)
    assert got.trace.fed[0] == (
        range(15), range(15), first, first,
        range(15), second, second, second,
        range(15), last,
    )  # fmt: skip


def test_the_published_vicinity_queries_everything_once_more_after_the_warmup() -> None:
    spec = "sequential@vicinity:before=2,after=1,warmup=2,reference=true"
    got = fill(toy("llada", sharp=1.2), spec, prompts((5,)), 8)
    assert [len(positions) for positions in got.trace.fed[0]] == [13, 13, 13, 7, 13, 6, 6, 6]
    spec = "sequential@vicinity:before=2,after=1,warmup=0,reference=true"
    got = fill(toy("llada", sharp=1.2), spec, prompts((5,)), 8)
    assert [len(positions) for positions in got.trace.fed[0]] == [13, 7, 7, 7, 13, 6, 6, 6]
    # The warm-up ends within the second block, whose refresh then follows the first window.
    spec = "sequential@vicinity:before=2,after=1,warmup=5,reference=true"
    got = fill(toy("llada", sharp=1.2), spec, prompts((5,)), 8)
    assert [len(positions) for positions in got.trace.fed[0]] == [13, 13, 13, 13, 13, 13, 6, 13]


# A prompt of five, eight tokens to come in one block; what is committed by step i is 7, 9, 6, 5, 12, ...
ORDER = [7, 9, 6, 5, 12, 11, 8, 10]
OPEN = range(5, 13)


def left(*gone: int) -> tuple[int, ...]:
    return tuple(p for p in OPEN if p not in gone)


def test_a_token_is_queried_once_more_after_its_commit() -> None:
    got = in_order("llada", "dkv:refresh=4,full=1", ORDER, steps=8, block_length=8)
    assert got == [
        ALL[:13], left(), left(7), left(7, 9), ALL[:13], left(7, 9, 6, 5), left(7, 9, 6, 5, 12), (8, 10)
    ]  # fmt: skip


def test_how_many_full_steps_a_block_begins_with_is_the_families() -> None:
    """LLaDA's authors' code has two, Dream's one; the result tells the number."""
    for name, full, other in (("tiny-llada", 2, 1), ("tiny-dream", 1, 2)):
        model = pardec.load(name, device="cpu")
        settings = {"max_new_tokens": 6, "block_length": 3, "stop_ids": []}
        got = model.generate("Tom has 3 cups.", sampler="sequential@dkv", **settings)
        length = got.sequences.shape[1]
        whole = [len(step.fed) == length for step in got.trace.steps[0]]
        assert whole == [True, full == 2, False] * 2
        assert f"@dkv:refresh=8,full={full}," in got.spec
        said = model.generate("Tom has 3 cups.", sampler=f"sequential@dkv:full={full}", **settings)
        assert said.spec == got.spec
        assert f"full={other}" in str(model.prepare("a", sampler=f"sequential@dkv:full={other}").sampler.spec)
    # A loop that is handed a sampler without a model takes the family's too.
    for family, full in (("llada", 2), ("dream", 1), ("sdar", 2), ("shifted-sdar", 1)):
        one, other = (fill(toy(family), f"sequential@dkv{said}", prompts((5,)), 8) for said in ("", f":full={full}"))
        assert one.trace.fed == other.trace.fed


def test_a_shifted_family_queries_the_rows_that_predict_and_the_token_itself() -> None:
    options = {"steps": 8, "block_length": 8}
    got = in_order("dream", "dkv:refresh=0", ORDER, **options)
    # Rows 4..11 predict 5..12. Of the second forward 7 is fresh: 6 has no longer to predict it, 7 is asked by itself.
    assert got[:4] == [ALL[:13], (4, 5, 7, 8, 9, 10, 11), (4, 5, 7, 9, 10, 11), (4, 6, 7, 9, 10, 11)]
    got = in_order("dream", "dkv:refresh=0,settle=next", ORDER, **options)
    assert got[:4] == [ALL[:13], (4, 5, 6, 7, 8, 9, 10, 11), (4, 5, 7, 8, 9, 10, 11), (4, 5, 6, 7, 9, 10, 11)]
    got = in_order("dream", "dkv:refresh=0,settle=both", ORDER, **options)
    assert got[:5] == [ALL[:13], *[tuple(range(4, 13))] * 3, (4, 5, 7, 8, 9, 10, 11, 12)]


def test_the_published_sets_of_dream() -> None:
    """`un` reuses position i once i + 1 is done, and the last one always; step 1 asks all after the prompt."""
    options = {"steps": 8, "block_length": 8}
    got = in_order("dream", "dkv:refresh=0,settle=next,reference=true", ORDER, **options)
    assert got[:5] == [ALL[:13], tuple(range(4, 13)), (4, 5, 7, 8, 9, 10, 11), (4, 5, 7, 9, 10, 11), (4, 7, 9, 10, 11)]
    got = in_order("dream", "dkv:refresh=0,settle=both,reference=true", ORDER, **options)
    assert got[:3] == [ALL[:13], tuple(range(4, 13)), tuple(range(4, 13))]
    assert got[4:6] == [(4, 5, 7, 8, 9, 10, 11, 12), (7, 8, 9, 10, 11, 12)]
    got = in_order("dream", "dkv:refresh=4,settle=next,prompt=keep,reference=true", ORDER, **options)
    assert got[0] == ALL[:13]
    assert got[4] == ALL[4:13]


def test_only_what_was_and_will_be_committed_is_queried() -> None:
    got = in_order("llada", "dkv_greedy:refresh=3,window=0", ORDER, steps=8, block_length=8)
    assert got == [ALL[:13], (7, 9), (6, 9), ALL[:13], (5, 12), (11, 12), ALL[:13], (8, 10)]
    got = in_order("dream", "dkv_greedy:refresh=3,window=0", ORDER, steps=8, block_length=8)
    assert got == [ALL[:13], (7, 8, 9), (5, 6, 9), ALL[:13], (5, 11, 12), (10, 11, 12), ALL[:13], (8, 9, 10)]


def test_the_window_takes_the_nearest_masks_in_the_order_of_commits() -> None:
    # Two a step: 7 9, 6 5, 12 11, 8 10. At the second, 6 takes 8 and 10, and 5 the nearest that are left, 11 and 12.
    got = in_order("llada", "dkv_greedy:refresh=0,window=2", ORDER, steps=4, block_length=8)
    assert got == [ALL[:13], (5, 6, 7, 8, 9, 10, 11, 12), (5, 6, 8, 10, 11, 12), (8, 10, 11, 12)]
    # 9 was committed, then 6 comes: 5 on the left is as near as 7 on the right, and one is taken.
    got = in_order("llada", "dkv_greedy:refresh=0,window=1", [9, 6, 7, 5, 8, 10, 11, 12], steps=8, block_length=8)
    assert got[1] == (5, 6, 9)


def test_the_window_looks_beyond_the_block() -> None:
    got = in_order("llada", "dkv_greedy:refresh=0,window=1", [7, 6, 5, 8, 9, 10, 11, 12], steps=8)
    assert got[3] == (5, 8, 9)  # 8 ends the first block of four; 9 is open in the second


@pytest.mark.parametrize("family", ["sdar", "shifted-sdar"])
def test_the_block_cache_queries_a_finished_block_once_more_with_the_next(family: str) -> None:
    got = fill(toy(family, sharp=1.2), "leftmost+sequential@block", prompts((6,)), 7)
    # A grid of four from position 0: the prompt ends within the second block, the last one has a single token.
    expected = [range(8), range(4, 8), range(4, 12), range(8, 12), range(8, 12), range(8, 12), range(8, 13)]
    if FAMILIES[family][0]:
        expected[2] = range(4, 12)
    assert list(got.trace.fed[0]) == expected


def test_blocks_of_a_template_that_are_passed_over_are_queried_with_the_next() -> None:
    m = MASK
    canvas = [1, 2, m, m, 5, 6, 7, 8, 9, 1, 2, 3, 4, m]
    model = toy("sdar", sharp=1.2)
    results = []
    for cache in ("block", "none"):
        *_, last = decode(model, registry.resolve(f"sequential@{cache}"), request([canvas], (2,), absolute=True))
        assert isinstance(last, Finished)
        results.append(last)
    assert list(results[0].trace.fed[0]) == [range(4), range(4), range(14)]
    assert agree(*results)


# --- parity with the plain version ---

RULES: dict[str, naive.Rule] = {
    "vicinity:before=3,after=2,warmup=2": naive.vicinity(3, 2, 2, 0),
    "vicinity:before=1,after=0,warmup=0,refresh=3": naive.vicinity(1, 0, 0, 3),
    "dkv:refresh=3,full=1": naive.dkv(3, 1, "self", "refresh"),
    "dkv:refresh=0,full=2,settle=next": naive.dkv(0, 2, "next", "refresh"),
    "dkv:refresh=0,full=1,settle=both": naive.dkv(0, 1, "both", "refresh"),
    "dkv:refresh=3,full=1,settle=next,prompt=keep": naive.dkv(3, 1, "next", "keep"),
    "block": naive.block(),
}


@pytest.mark.parametrize("cache", RULES)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.covers(1)
def test_a_cache_is_its_plain_version(family: str, cache: str) -> None:
    if cache == "block" and FAMILIES[family][1] != "block-causal":
        return
    model = toy(family, seed=5, sharp=1.2)
    for length, new, size in ((5, 10, BLOCK), (9, 6, BLOCK), (2, 9, 9)):
        size = BLOCK if FAMILIES[family][1] == "block-causal" else size
        (prompt,) = prompts((length,), seed=length)
        tokens, when, fed = naive.decode(model, prompt, new, RULES[cache], size=size)
        got = fill(model, f"sequential@{cache}", [prompt], new, block_length=size)
        assert queried(got) == fed
        assert got.tokens[0].tolist() == tokens
        assert dict(enumerate(got.trace.commit_step[0].tolist()[length:], length)) == dict(sorted(when.items()))


@pytest.mark.parametrize(("refresh", "window"), [(2, 4), (0, 0), (3, 1), (0, 2), (1, 4)])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_greedy_cache_is_its_plain_version(family: str, refresh: int, window: int) -> None:
    model = toy(family, seed=5, sharp=1.2)
    drawn = np.random.RandomState(window)
    for length, new, count in ((5, 12, 1), (4, 12, 2), (8, 8, 4)):
        (prompt,) = prompts((length,), seed=length)
        order = (length + drawn.permutation(new)).tolist()
        size = BLOCK
        if FAMILIES[family][1] == "block-causal" and length % BLOCK:
            continue  # the first block then has fewer tokens, and the schedule another share of them
        rule = naive.dkv_greedy(refresh, window)
        tokens, when, fed = naive.decode(model, prompt, new, rule, size=size, count=count, order=order)
        for spec in ("random+fixed", "fixed:order=random"):
            spec += f"{',' if ':' in spec else ':'}steps={new // count}"
            source = Descending(order)
            got = fill(model, f"{spec}@dkv_greedy:refresh={refresh},window={window}", [prompt], new, source=source)
            assert queried(got) == fed
            assert got.tokens[0].tolist() == tokens
            assert dict(enumerate(got.trace.commit_step[0].tolist()[length:], length)) == dict(sorted(when.items()))


# --- soundness ---

ORDERED = ("dkv_greedy:refresh=0,window=0", "dkv_greedy:refresh=3,window=2")
SOUND = (
    "prefix", "dual:refresh=5", "vicinity:before=2,after=1,warmup=2", "dkv:refresh=0", "dkv:refresh=3,settle=next",
    "dkv:refresh=0,settle=both,full=2", "dkv:refresh=2,settle=self,prompt=keep", "block", *ORDERED,
)  # fmt: skip
SELECTS = (
    "sequential", "threshold:tau=0.4", "origin:steps=40", "random+fixed:steps=6", "remdm+threshold:tau=0.4",
    "wino+threshold:tau=0.4", "edit+threshold:tau=0.4",
)  # fmt: skip


def stale(model: Any, spec: str, rows: list[list[int]], starts: list[int], **options: Any) -> tuple[int, Finished]:
    """How many times a forward saw a position with the K/V of another token than the one that stood there."""
    options.setdefault("absolute", model.decoding_config.attention == "block-causal")
    tokens: dict[int, list[np.ndarray]] = {}
    for event in decode(model, registry.resolve(spec), request(rows, starts, **options)):
        if isinstance(event, Started):
            tokens = {row: [held.copy()] for row, held in enumerate(event.tokens)}
        elif isinstance(event, Step):
            for row, held in zip(event.rows, event.tokens, strict=True):
                tokens[int(row)].append(held.copy())
    assert isinstance(event, Finished)
    count = 0
    for row, fed in enumerate(event.trace.fed):
        stored = np.full(event.trace.lengths[row], -1)
        reach = 0
        for number, positions in enumerate(fed):
            stored[list(positions)] = tokens[row][number][list(positions)]
            reach = max(reach, *positions) + 0
            count += int((stored[: reach + 1] != tokens[row][number][: reach + 1]).sum())
    return count, event


def fitting(family: str, select: str, cache: str) -> bool:
    """Whether they go together at all."""
    if cache == "block" and FAMILIES[family][1] != "block-causal":
        return False
    return cache not in ORDERED or "random" in select


@pytest.mark.parametrize("cache", SOUND)
@pytest.mark.parametrize("select", SELECTS)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.covers(2)
def test_every_forward_sees_the_tokens_that_stand_there(family: str, select: str, cache: str) -> None:
    if not fitting(family, select, cache):
        return
    rows = [prompt + [MASK] * new for prompt, new in zip(prompts(LENGTHS), NEW, strict=True)]
    rows[0][8] = 3  # given, as by a template
    distributions: list[dict[str, Any]] = [{}, {"temperature": 0.8, "cfg": 1.5}]
    if FAMILIES[family][1] == "bidirectional":
        distributions.append({"block_length": 10})
    distribution = distributions[sum(map(ord, family + select + cache)) % len(distributions)]
    count, got = stale(toy(family, seed=2, sharp=1.2), f"{select}@{cache}", rows, list(LENGTHS), **distribution)
    assert count == 0
    assert not (got.tokens == MASK).any()
    if "origin" in select:  # idle steps between commits are the trap
        assert any((np.diff(clocks) > 1).any() for clocks in got.trace.clocks)


def test_the_published_sets_keep_masks_under_tokens() -> None:
    """So that the test above can fail."""
    rows = [prompt + [MASK] * 9 for prompt in prompts((5, 3))]
    spec = "random+fixed@dkv:refresh=0,settle=next,reference="
    assert stale(toy("dream", sharp=1.2), spec + "true", rows, [5, 3], block_length=9)[0] > 0
    assert stale(toy("dream", sharp=1.2), spec + "false", rows, [5, 3], block_length=9)[0] == 0


@pytest.mark.parametrize("cache", ["dual:refresh=7", "vicinity:warmup=0,refresh=7", "dkv:refresh=7"])
def test_a_refresh_that_falls_on_an_idle_step_is_made_at_the_next_forward(cache: str) -> None:
    spec = f"origin:steps=24@{cache}"
    got = fill(toy("llada", sharp=1.2), spec, prompts((30,)), 8, block_length=8)
    clocks = got.trace.clocks[0]
    due = [now // 7 > before // 7 for before, now in zip((-1, *clocks), clocks, strict=False)]
    assert [len(positions) == 38 for positions in got.trace.fed[0]] == [True, *due[1:]]
    assert any(late and now % 7 for late, now in zip(due[1:], clocks[1:], strict=True))


# --- identities ---

EVERY = ("prefix", "dual", "vicinity:before=1,after=1,warmup=0", "dkv", "dkv:settle=next", "dkv:settle=both")


def agree(one: Finished, other: Finished) -> bool:
    """Tokens, commit steps and forwards of all rows; what was fed may differ."""
    found = zip((one.tokens, one.trace.commit_step), (other.tokens, other.trace.commit_step), strict=True)
    return one.nfe == other.nfe and all((x == y).all() for x, y in found)


@pytest.mark.parametrize("distribution", [{}, {"temperature": 0.9, "top_p": 0.9}, {"cfg": 1.7}])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.covers(1)
def test_refreshing_at_every_step_is_no_cache(family: str, distribution: dict[str, Any]) -> None:
    model, given = toy(family, seed=1, sharp=1.2), prompts(LENGTHS)
    for select in ("threshold:tau=0.4", "origin:steps=30"):
        plain = fill(model, f"{select}@none", given, NEW, **distribution)
        for cache in EVERY:
            refreshed = f"{cache}{',' if ':' in cache else ':'}refresh=1"
            assert agree(fill(model, f"{select}@{refreshed}", given, NEW, **distribution), plain), refreshed
    plain = fill(model, "random+fixed:steps=9@none", given, NEW, **distribution)
    assert agree(fill(model, "random+fixed:steps=9@dkv_greedy:refresh=1,window=3", given, NEW, **distribution), plain)
    assert agree(fill(model, "fixed:steps=9,order=random@dkv_greedy:refresh=1", given, NEW, **distribution), plain)


def test_that_is_what_the_result_says() -> None:
    for cache in EVERY:
        refreshed = f"{cache}{',' if ':' in cache else ':'}refresh=1"
        assert registry.resolve(f"sequential@{refreshed}").exact == "greedy"
        assert registry.resolve(f"sequential@{cache}").exact == "relaxed"
    assert registry.resolve("sequential@dkv:refresh=1,prompt=keep").exact == "relaxed"
    assert registry.resolve("sequential@dual:refresh=1,reference=true").exact == "relaxed"
    assert registry.resolve("sequential@block").exact == "greedy"


@pytest.mark.parametrize("distribution", [{}, {"temperature": 0.9}, {"cfg": 1.7}])
@pytest.mark.parametrize(
    "select", ["threshold:tau=0.4", "sequential", "random+fixed:steps=9", "wino+threshold:tau=0.4"]
)
@pytest.mark.parametrize("family", ["sdar", "shifted-sdar"])
@pytest.mark.covers(2)
def test_a_block_causal_model_loses_nothing_and_queries_least_with_the_block_cache(
    family: str, select: str, distribution: dict[str, Any]
) -> None:
    model, given = toy(family, seed=1, sharp=1.2), prompts((30, 2, 9))
    results = {
        cache: fill(model, f"{select}@{cache}", given, NEW, **distribution) for cache in ("none", "dual", "block")
    }
    assert agree(results["block"], results["none"])
    assert agree(results["dual"], results["none"])
    fed = [sum(results[cache].tokens_fed) for cache in ("block", "dual", "none")]
    assert fed[0] < fed[1] < fed[2]


@pytest.mark.parametrize("family", ["sdar", "shifted-sdar"])
def test_the_vicinity_loses_nothing_in_a_block_causal_model(family: str) -> None:
    model, given = toy(family, seed=1, sharp=1.2), prompts((30, 2, 9))
    spec = "threshold:tau=0.4@{}"
    assert agree(fill(model, spec.format("vicinity"), given, NEW), fill(model, spec.format("none"), given, NEW))


def test_what_is_settled_is_one_in_a_family_without_shift() -> None:
    model, given = toy("llada", seed=1, sharp=1.2), prompts(LENGTHS)
    results = [
        fill(model, f"threshold:tau=0.4@dkv:settle={settle},reference={reference}", given, NEW)
        for settle in ("self", "next", "both")
        for reference in ("false", "true")
    ]
    assert all(agree(one, results[0]) and one.trace.fed == results[0].trace.fed for one in results)


def test_what_is_settled_is_more_with_each_setting() -> None:
    spec = "leftmost+fixed@dkv:refresh=0,settle={}"
    sets = [queried(fill(toy("dream"), spec.format(settle), prompts((5,)), 9)) for settle in ("self", "next", "both")]
    for one, two, three in zip(*sets, strict=True):
        assert set(one) <= set(two) <= set(three)
    assert sum(map(len, sets[0])) < sum(map(len, sets[1])) < sum(map(len, sets[2]))


@pytest.mark.parametrize("distribution", [{}, {"temperature": 0.8, "cfg": 1.5}])
@pytest.mark.parametrize("cache", SOUND)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.covers(2)
def test_a_row_is_alone_what_it_is_in_a_ragged_batch(family: str, cache: str, distribution: dict[str, Any]) -> None:
    select = "random+fixed:steps=5" if cache in ORDERED else "threshold:tau=0.4"
    if not fitting(family, select, cache):
        return
    lengths, new = (3, 6, 1, 5), (7, 6, 9, 2)
    model, given = toy(family, sharp=1.2), prompts(lengths)
    whole = fill(model, f"{select}@{cache}", given, new, **distribution)
    for row in range(4):
        alone = fill(model, f"{select}@{cache}", [given[row]], new[row], seeds=[100 + row], **distribution)
        assert same(alone, 0, whole, row)
        assert queried(alone) == queried(whole, row)
    assert (whole.tokens[0, 10:] == PAD).all()


# --- what is refused ---


test_what_cannot_work_is_refused = refused_specs(
    [
        ("sequential@vicinity:before=-1", "before must be at least 0, got -1"),
        ("sequential@vicinity:warmup=-2", "warmup must be at least 0, got -2"),
        ("sequential@dkv:refresh=-1", "dkv: refresh must be at least 0"),
        ("sequential@dkv:full=0", "full must be at least 1, got 0"),
        ("sequential@dkv:settle=un", "settle is one of self, next, both"),
        ("random+fixed@dkv_greedy:window=-1", "window must be at least 0, got -1"),
        ("random+fixed@dkv_greedy:refresh=-1", "dkv_greedy: refresh must be at least 0"),
        ("sequential@dkv_greedy", r"dkv_greedy must know .* which sequential decides after it"),
        ("fixed@dkv_greedy", r"dkv_greedy must know .* which fixed decides after it"),
        ("random+sequential@dkv_greedy", "dkv_greedy must know"),
    ]
)


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_the_block_cache_is_refused_where_blocks_see_what_comes_after_them(family: str) -> None:
    with pytest.raises(SpecError, match="final only in block-causal models"):
        fill(toy(family), "sequential@block", prompts((3,)), 4)
