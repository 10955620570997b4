"""The target without some sub-blocks: which ones, what the search finds, and that nothing of the draft remains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import Tensor

from pardec.models.decoder import DecoderLayer
from pardec.models.errors import SpecError
from pardec.models.files import cache_dir
from pardec.models.model import LanguageModel
from pardec.models.plan import Plan, Visible
from pardec.samplers import registry
from pardec.samplers.speculative.draft.layerskip import (
    LayerSkip,
    Search,
    Skip,
    SkipFile,
    Skipping,
    _searches,
    inner,
    shared_search,
    uniform,
)
from tests.samplers.ar_toys import counted, g_test, joint, rows, run, toy_ar
from tests.samplers.fake_draft_model import NEW, RAGGED, distribution, distribution_errors, greedy, target

SHAPES = ("chain", "template:widths=3-2-1", "dyspec:nodes=8,children=3", "beam:beams=3,nodes=8")


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_with_nothing_skipped_everything_is_accepted(temperature: float) -> None:
    done = run(target(), "layerskip:ratio=0,k=4", RAGGED, 16, temperature=temperature)
    assert done.trace.accepted == ((0, 4, 4, 4),) * len(RAGGED)


@pytest.mark.parametrize("shape", SHAPES)
def test_every_distribution_of_the_target_is_that_of_a_whole_forward(shape: str) -> None:
    """So no K/V of drafts are ever read; with nothing skipped the drafter's distributions are the target's."""
    with distribution_errors() as errors:
        done = run(target(), f"layerskip:ratio=0.8,k=4,skip=search,context=3+{shape}", RAGGED, NEW, temperature=1.0)
    assert max(errors) < 5e-5
    assert max(map(max, done.trace.accepted)) >= 2
    with distribution_errors(lambda text: distribution(target(), text)) as errors:
        run(target(), f"layerskip:ratio=0,k=4+{shape}", RAGGED, NEW, temperature=1.0)
    assert max(errors) < 5e-5


# --- which sub-blocks ---


@pytest.mark.parametrize(
    ("layers", "ratio", "count"), [(4, 0.45, 1), (32, 0.45, 27), (6, 1.0, 8), (6, 0.0, 0), (2, 1.0, 0)]
)
def test_a_share_of_the_inner_sub_blocks_is_skipped(layers: int, ratio: float, count: int) -> None:
    assert LayerSkip().ratio == 0.45, "SWIFT's"
    skip = uniform(layers, ratio)
    assert len(skip) == count == int(2 * (layers - 2) * ratio)
    assert skip <= set(inner(layers))
    whole = sorted(layer for layer, times in Counter(layer for layer, _ in skip).items() if times == 2)
    assert len(whole) == count // 2
    assert not whole or max(np.diff([0, *whole, layers - 1])) <= 2 * np.ceil((layers - 1) / (len(whole) + 1))


@contextmanager
def counted_blocks() -> Iterator[Counter[tuple[str, int]]]:
    """How often each sub-block ran, and over how many queries in total."""
    seen: Counter[tuple[str, int]] = Counter()
    attention = DecoderLayer._attention

    def watched(self: DecoderLayer, h: Tensor, step, index: int, picked):  # type: ignore[no-untyped-def]
        seen["attn", index] += 1
        return attention(self, h, step, index, picked)

    with patch.object(DecoderLayer, "_attention", watched):
        yield seen


def test_what_is_skipped_does_not_run() -> None:
    with counted_blocks() as seen:
        done = run(target(), "layerskip:ratio=1,k=3", [[1, 2, 3]], 10)
    forwards, drafts = done.nfe[0], done.draft_forwards[0]
    assert drafts > forwards
    assert [seen["attn", layer] for layer in range(4)] == [forwards + drafts, forwards, forwards, forwards + drafts]


# --- the search ---


def the_search_finds_the_best_choice_and_scores_only_rise() -> None:
    assert {layer for layer, _ in inner(6)} == {1, 2, 3, 4}, "the first and the last layer always run"
    value = {block: i * i % 7 for i, block in enumerate(inner(6))}

    def worth(skip: Skip) -> float:
        return sum(value[block] for block in skip) / 100

    search = Search(6, 0.4)
    scores = []
    while (skip := search.next((0,))) is not None:
        assert len(skip) == 3
        search.record(skip, worth(skip))
        assert search.score is not None
        scores.append(search.score)
    assert scores == sorted(scores)
    assert search.score == max(worth(frozenset(skip)) for skip in combinations(inner(6), 3))
    assert len(scores) <= len(list(combinations(inner(6), 3)))  # nothing is tried twice


def test_a_new_text_has_the_best_choice_scored_again() -> None:
    search = Search(8, 0.5)
    first = search.next((0, 1))
    assert first == search.best
    search.record(first, 0.8)
    other = search.next((0, 1))
    assert other is not None
    assert other != first
    search.record(other, 0.3)
    assert search.next((1,)) == first
    search.record(first, 0.1)
    better = search.next((1,))
    assert better is not None
    search.record(better, 0.2)
    assert (search.best, search.score) == (better, 0.2)


def a_good_match_or_many_vain_tries_end_it() -> None:
    search = Search(40, 0.5)
    search.record(search.next((0,)) or search.best, 0.96)
    assert search.next((0,)) is None
    search = Search(40, 0.5)
    tries = 0
    while (skip := search.next((0,))) is not None:
        search.record(skip, 0.5)
        tries += 1
    assert tries == 301
    search, tries = Search(40, 0.5), 0
    while (skip := search.next((0,))) is not None:
        search.record(skip, 0.6 if tries == 150 else 0.5)
        tries += 1
    assert tries == 151 + 300  # counted from the last gain


def the_match_is_the_share_that_the_skipping_stack_would_have_said() -> None:
    """Compared with a separate cache: the prompt by the whole stack, the rest token by token without the sub-blocks."""
    model, seen = target(), []
    match = Skipping._match

    def watched(self: Skipping, skip: Skip, rows_: np.ndarray, context: int) -> float:
        found = match(self, skip, rows_, context)
        text, hits = self.context.text, []
        for row in rows_:
            prompt, tokens = int(text.prompt[row]), text.row(row).tolist()
            cache = model.new_cache(1, len(tokens))
            if prompt > 1:
                model.forward(Plan.full(torch.tensor([tokens[: prompt - 1]]), Visible.causal()), cache)
            for at in range(prompt - 1, prompt - 1 + context):
                one = torch.tensor([[at]])
                plan = Plan(torch.tensor([[tokens[at]]]), one, one, Visible.causal(), one[0] + 1, one * 0, skip=skip)
                hits.append(int(model.forward(plan, cache).logits().argmax()) == tokens[at + 1])
        seen.append((found, float(np.mean(hits))))
        return found

    improve = Skipping.improve

    def drafts_with_the_best(self: Skipping, context: int) -> int:
        forwards = improve(self, context)
        assert self.search is not None
        assert self.skip == self.search.best
        return forwards

    with patch.object(Skipping, "_match", watched), patch.object(Skipping, "improve", drafts_with_the_best):
        done = run(model, "layerskip:ratio=0.6,k=2,skip=search,context=5", RAGGED, NEW)
    assert rows(done) == greedy()
    assert len(seen) > 4
    assert [found for found, _ in seen] == pytest.approx([truth for _, truth in seen])
    assert len({found for found, _ in seen}) > 2


def a_choice_is_judged_once_its_texts_weigh_one_together() -> None:
    search = Search(8, 0.5)
    even = search.best

    def scored(text: int, weight: float, best: float, score: float) -> Skip:
        first = search.next(text, weight)
        assert first == search.best
        search.record(first, best)
        other = search.next(text, weight)
        assert other is not None
        search.record(other, score)
        return other

    one = scored(0, 0.5, 0.4, 0.7)
    assert search.best == even, "half a text is not enough"
    assert scored(1, 0.25, 0.5, 0.4) == one, "what is open is scored on the next text first"
    assert scored(1, 0.5, 0.5, 0.6) == one, "a text that has grown replaces what it was"
    assert search.best == one
    assert not search.open
    loser = scored(2, 0.5, 0.6, 0.5)
    assert scored(3, 0.5, 0.6, 0.6) == loser
    assert search.best == one
    assert scored(4, 0.5, 0.6, 0.5) != loser, "nothing is tried twice"
    search, gains = Search(8, 0.5), []
    for text, first, scores in ((0, 0.4, (0.7, 0.6)), (1, 0.4, (0.7,))):
        search.record(search.next(text, 0.5) or search.best, first)
        for score in scores:
            gains.append(search.next(text, 0.5) or search.best)
            search.record(gains[-1], score)
    assert search.best == gains[0] == gains[2]
    assert not search.open, "the other one's gain was over a set that is no longer the best"
    search, seen = Search(8, 0.5), list[Skip]()
    for text, weight, scores in ((0, 0.25, {0: 0.5, 1: 0.7}), (1, 0.25, {1: 0.7}), (2, 0.5, {0: 0.5, 1: 0.7})):
        search.record(search.next(text, weight) or search.best, 0.4)
        for at, score in scores.items():
            seen += [search.next(text, weight) or search.best] if at == len(seen) else []
            search.record(seen[at], score)
    assert search.best == seen[1], "the other one has 3/4 so far"
    search.next(3, 0.5)
    assert not search.open, "and none of it counts against the new best set"


def rows_with_enough_tokens_are_scored_and_a_half_or_a_quarter_only_where_no_row_has_them() -> None:
    asked: list[tuple[int, float]] = []
    search: Any = SimpleNamespace(next=lambda prompts, weight: asked.append((len(prompts), weight)), best=frozenset())
    for generated in ((8, 3), (5, 4), (3, 2), (1, 1)):
        text: Any = SimpleNamespace(
            length=2 + np.array(generated), prompt=np.array([2, 2]), row=lambda at: np.arange(9)
        )
        state: Any = SimpleNamespace(
            context=SimpleNamespace(text=text), search=search, cache=SimpleNamespace(reach=99), skip=None
        )
        assert Skipping.improve(state, 8) == 0
    assert asked == [(1, 1.0), (2, 0.5), (2, 0.25)]


def lame() -> LanguageModel:
    """A model whose sub-blocks kept by skip=uniform do nothing."""
    model = toy_ar(12, 5, 3.0, layers=6)
    with torch.no_grad():
        for layer in (2, 3):
            stack = model.decoder.layers[layer]  # type: ignore[attr-defined]
            stack.out_weight.zero_()
            stack.down_weight.zero_()
    return model


def test_a_request_uses_what_another_one_found() -> None:
    """Each request names the sampler again, like calls of generate."""
    spec = "layerskip:ratio=0.5,k=3,skip=search,context=8"
    model, short = lame(), [[1, 2], [3], [0, 4], [2, 2]]
    before = run(lame(), spec, short, 10)
    run(model, spec, RAGGED, 60)
    after = run(model, spec, short, 10)
    assert rows(after) == rows(before)
    assert sum(after.nfe) < sum(before.nfe)
    # Another ratio, or another model, has a search of its own; so has a request whose text is drawn.
    assert (
        shared_search(model, 0.5, 8).best
        != uniform(6, 0.5)
        == shared_search(lame(), 0.5, 8).best
        == shared_search(model, 0.5, 9).best
    )
    one, other = (run(each, spec, RAGGED, NEW, temperature=0.9, seeds=range(len(RAGGED))) for each in (model, lame()))
    assert rows(one) == rows(other)


def test_several_short_requests_search_together() -> None:
    """None has as many generated tokens as scoring a choice needs."""
    model, spec = lame(), "layerskip:ratio=0.5,k=3,skip=search,context=16"
    for n in range(20):
        run(model, spec, [[n % 5, n // 5]], 14)
    search = shared_search(model, 0.5, 16)
    assert search.best != uniform(6, 0.5)
    assert len(search.proposed) > 4


def test_a_search_helps_where_the_even_choice_is_a_bad_one() -> None:
    model = lame()
    even = run(model, "layerskip:ratio=0.5,k=3", RAGGED, 60)
    found = run(model, "layerskip:ratio=0.5,k=3,skip=search,context=8", RAGGED, 60)
    assert rows(found) == rows(even)
    assert sum(found.nfe) < sum(even.nfe)


def test_draws_have_the_targets_distribution_while_layers_are_searched() -> None:
    draws = 4000
    done = run(
        target(),
        "layerskip:ratio=0.8,k=3,skip=search,context=1",
        [[1, 3]] * draws,
        4,
        temperature=0.9,
        seeds=range(draws),
    )
    assert g_test(counted(done, 2, 4, 5), joint(target(), [1, 3], 4, temperature=0.9)) < 4


# --- what is kept on disk ---


def forgotten(model: LanguageModel) -> None:
    """Simulates a new process: no search is in memory."""
    _searches.pop(model.decoder, None)


def test_a_later_process_begins_with_what_an_earlier_one_found() -> None:
    spec, model = "layerskip:ratio=0.5,k=3,skip=search,context=8,disk=true", lame()
    run(model, spec, RAGGED, 60)
    best = shared_search(model, 0.5, 8, disk=True).best
    assert best != uniform(6, 0.5)
    again = lame()  # the same weights in another object
    assert shared_search(again, 0.5, 8, disk=True).best == best
    for other in (shared_search(again, 0.5, 8), shared_search(again, 0.5, 9, disk=True)):
        assert other.best == uniform(6, 0.5), "in memory alone, or of another context"
    with torch.no_grad():
        again.decoder.layers[1].out_weight.mul_(1.1)  # type: ignore[attr-defined]
    forgotten(again)
    assert shared_search(again, 0.5, 8, disk=True).best == uniform(6, 0.5), "other weights"
    forgotten(model)
    assert rows(run(model, spec, RAGGED, 20)) == rows(run(lame(), "sequential", RAGGED, 20))


def test_a_damaged_file_is_none_and_of_two_writers_the_later_is_read() -> None:
    file = SkipFile("toy-0.5-8.json")
    first, second = Search(8, 0.5, file), Search(8, 0.5, file)
    for search, score in ((first, 0.5), (second, 0.7)):
        search.record(search.next(0) or search.best, 0.4)
        search.record(search.next(0) or search.best, score)
    second.best = first.best ^ {min(first.best), min(set(inner(8)) - first.best)}
    for search in (first, second):
        search._write()
    assert Search(8, 0.5, file).best == second.best
    for values in ({"skip": [[0, "attn"]] * 6, "idle": 0}, {"skip": [[1, "attn"]], "idle": 0}, {"skip": 1}, {}):
        file.write(values)
        assert Search(8, 0.5, file).best == uniform(8, 0.5)
    with cache_dir.private("layerskip") as folder:
        cache_dir.write(folder / file.name, b"{")
    assert Search(8, 0.5, file).best == uniform(8, 0.5)


def test_a_choice_without_a_search_is_not_kept_on_disk() -> None:
    with pytest.raises(SpecError, match="disk=true needs skip=search"):
        registry.resolve("layerskip:disk=true", "ar")


# --- the papers ---


def uneven(seed: int = 5) -> LanguageModel:
    """Twelve layers, some of which add much to the states and some little."""
    model = toy_ar(seed, 11, 3.0, layers=12)
    scale = np.random.RandomState(seed).permutation(np.geomspace(0.02, 1.0, 12))
    with torch.no_grad():
        for layer, factor in zip(model.decoder.layers, scale, strict=True):  # type: ignore[attr-defined]
            layer.out_weight.mul_(factor)
            layer.down_weight.mul_(factor)
    return model


@pytest.mark.seeds("arXiv:2410.06916")
def test_swift_finds_better_layers_than_evenly_spread_ones() -> None:
    """Lossless; the match of the best set only rises; at the same ratio it accepts more than the uniform choice."""
    replaced = lame()
    search = shared_search(replaced, 0.5, 8)
    assert shared_search(replaced, 0.5, 8) is search
    replaced.decoder.weights_version += 1  # type: ignore[misc]
    assert shared_search(replaced, 0.5, 8) is not search
    a_good_match_or_many_vain_tries_end_it()
    the_search_finds_the_best_choice_and_scores_only_rise()
    a_choice_is_judged_once_its_texts_weigh_one_together()
    rows_with_enough_tokens_are_scored_and_a_half_or_a_quarter_only_where_no_row_has_them()
    the_match_is_the_share_that_the_skipping_stack_would_have_said()
    model, text = uneven(), [[1, 2, 3]]
    matches, record = [], Search.record

    def watched(self: Search, skip: Skip, score: float) -> None:
        record(self, skip, score)
        if self.text is not None and self.text[1] == 1:  # all tokens that a choice is scored on
            matches.append(self.score)

    with patch.object(Search, "record", watched):
        run(model, "layerskip:ratio=0.5,k=4,skip=search,context=24", text, 100)
    assert len(matches) > 20
    assert matches == sorted(matches)
    assert matches[-1] > matches[0]
    even, best = (
        run(model, f"layerskip:ratio=0.5,k=4,skip={skip},context=24", text, 60) for skip in ("uniform", "search")
    )
    assert rows(best) == rows(even) == rows(run(model, "sequential", text, 60))
    assert sum(best.nfe) < 0.9 * sum(even.nfe)


@pytest.mark.seeds("arXiv:2404.06954")
def test_unified_layer_skipping_runs_as_few_layers_as_the_target_speed_up_says() -> None:
    """For a speed-up of 2, 6 of 12 layers run, evenly spread; as a drafter it is lossless."""
    for layers, ratio, count in ((4, 0.45, 1), (32, 0.45, 27), (6, 1.0, 8), (6, 0.0, 0)):
        test_a_share_of_the_inner_sub_blocks_is_skipped(layers, ratio, count)
    assert uniform(4, 0.45) == {(2, "attn")}  # of an odd number the last is the attention of a layer
    assert uniform(6, 0.4) == {(2, "attn"), (3, "attn"), (3, "mlp")}  # in the middle of those that are left
    assert {layer for layer, _ in uniform(8, 0.5)} == {2, 4, 6}  # from the middle of each of three parts
    model, prompt = uneven(), [1, 2, 3]
    with counted_blocks() as count:
        done = run(model, "layerskip:ratio=0.6,k=3", [prompt], 24)
    forwards, drafts = done.nfe[0], done.draft_forwards[0]
    assert LayerSkip(ratio=0.6).cost_ratio(model, None) == 0.5
    layers = [(count["attn", layer] - forwards) / drafts for layer in range(12)]
    assert set(layers) == {0, 1}
    assert 12 / sum(layers) == 2
    skipped = [layer for layer, ran in enumerate(layers) if not ran]
    assert skipped == sorted({layer for layer, _ in uniform(12, 0.6)})
    assert max(np.diff([0, *skipped, 11])) <= 2, "balanced"
    assert rows(done) == rows(run(model, "sequential", [prompt], 24))
    assert max(done.trace.accepted[0]) >= 1
