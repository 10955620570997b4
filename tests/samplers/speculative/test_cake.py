"""Budgets by layer, the kept slots, and that evicted slots stay evicted."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pardec.models.caches.compact_cache import PartialCache
from pardec.samplers import registry
from pardec.samplers.speculative.cache.cake import Cake, Eviction, best, indicator, layer_budgets, preference
from pardec.samplers.speculative.sparse_kv import Choice, CommittedSlots
from tests.samplers.ar_toys import plain_greedy, prompts, rows, run, toy_ar
from tests.samplers.copying_model import induction

CPU = torch.device("cpu")
LENGTHS, NEW = (30, 12, 41, 7), (12, 15, 6, 18)
FEW = "cake:budget=10,window=4,refresh=1"


def naive_preference(attention: Tensor, tau1: float, tau2: float) -> float:
    """The preference of attention [H, n, S], entry by entry."""
    disp = -sum(float(a) * np.log(float(a)) for a in attention.flatten() if a > 0)
    var = 0.0
    for head in attention:
        for slot in head.T:
            mean = float(slot.mean())
            var += sum((float(a) - mean) ** 2 for a in slot) / (len(slot) - 1)
    return float(disp ** (1 / tau1) * var ** (1 / tau2))


def published(shares: list[float], total: int, most: int) -> list[int]:
    """The authors' budget balancing: whole numbers, a cap, the excess in equal parts, then the remainder."""
    budgets = np.array([share * total for share in shares], dtype=int)
    excess = int(np.maximum(budgets - most, 0).sum())
    budgets = np.minimum(budgets, most)
    for more in (excess, None):
        left = total - int(budgets.sum()) if more is None else more
        room = np.flatnonzero(budgets < most)
        if left > 0 and len(room):
            budgets[room] += left // len(room)
            budgets[room[: left % len(room)]] += 1
    return budgets.tolist()  # type: ignore[no-any-return]


def naive_attention(q: Tensor, k: Tensor, length: int, window: int) -> Tensor:
    """[H, n, length - window] float64: attention of one row's last queries over the slots before the window."""
    count, heads, kv, found = len(q), q.shape[1], k.shape[1], []
    for h in range(heads):
        raw = q[:, h].double() @ k[:length, h // (heads // kv)].double().T / q.shape[-1] ** 0.5
        for i in range(count):
            raw[i, length - count + i + 1 :] = -torch.inf
        found.append(raw.softmax(-1)[:, : length - window])
    return torch.stack(found)


def naive_kept(q: Tensor, k: Tensor, length: int, budget: int, window: int, gamma: float) -> list[list[int]]:
    """By key head: the slots that one row keeps in a layer, from queries [n, H, D] and keys [S, K, D]."""
    heads, kv, kept = q.shape[1], k.shape[1], []
    scores = torch.zeros(heads, length - window, dtype=torch.float64)
    for h, a in enumerate(naive_attention(q, k, length, window)):
        scores[h] = F.avg_pool1d((a.mean(0) + gamma * a.var(0))[None], 5, stride=1, padding=2)[0]
    for head in range(kv):
        group = heads // kv
        kept.append(sorted(scores[head * group : (head + 1) * group].mean(0).topk(budget).indices.tolist()))
    return kept


def a_layers_preference_and_the_indicator_are_those_of_the_formulas() -> None:
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(3, 4, 5, 9, generator=generator).softmax(-1)
    a[1, ..., 7:] = 0  # a shorter row
    for tau1, tau2 in ((1.0, 1.0), (1.6, 0.4)):
        expected = [naive_preference(row, tau1, tau2) for row in a]
        assert preference(a, tau1, tau2).tolist() == pytest.approx(expected, rel=1e-5)
        assert Cake(tau1=tau1, tau2=tau2)._preference(a).tolist() == pytest.approx(expected, rel=1e-5)
        shared = naive_preference(a.flatten(0, 1), tau1, tau2)  # the heads of all rows
        assert Cake(tau1=tau1, tau2=tau2, reference=True)._preference(a).tolist() == pytest.approx(
            [shared] * 3, rel=1e-5
        )
    score = indicator(a, 2, 50.0)
    alone = indicator(a[1:2, ..., :7], 2, 50.0)
    assert torch.allclose(score[1, :7], alone[0])
    by_hand = F.avg_pool1d(a[0].mean(1) + 50 * a[0].var(1), 5, stride=1, padding=2).view(2, 2, 9).mean(1)
    assert torch.allclose(score[0], by_hand.T)
    assert torch.allclose(indicator(a[:, :, :1], 2, 50.0), indicator(a[:, :, :1], 2, 0.0)), "one query has no variance"


def budgets_are_the_published_ones_and_never_above_what_there_is() -> None:
    drawn = np.random.RandomState(0)
    same = 0
    for _ in range(200):
        layers, average, most = drawn.randint(2, 7), drawn.randint(4, 40), drawn.randint(30, 90)
        shares = drawn.dirichlet(np.ones(layers))
        budgets = layer_budgets(shares * drawn.uniform(0.1, 9), average, most)
        assert budgets.max() <= most
        assert budgets.sum() == min(average, most) * layers
        other = published(shares.tolist(), average * layers, most)
        if max(other) <= most and sum(other) == budgets.sum():
            same += 1
            assert np.abs(budgets - other).max() <= 1, "the parts of a part that is left over fall elsewhere"
    assert same > 150
    assert layer_budgets(np.zeros(3), 5, 9).tolist() == [5, 5, 5]
    assert layer_budgets(np.array([8.0, 1, 1]), 10, 20).tolist() == [20, 5, 5]  # shares of 24, 3 and 3


def the_best_are_kept_in_order_and_candidates_grow_by_what_is_new() -> None:
    state = Eviction.start(2, 1)
    rows_ = np.arange(2)
    assert state.candidates(0, rows_, np.array([3, 1]), 1, CPU)[0][..., 0].tolist() == [[0, 1, 2], [0, -1, -1]]
    slots = torch.tensor([[0, 1, 2, 3], [0, 1, -1, -1]])[..., None]
    score = torch.tensor([[1.0, 9.0, 2.0, 5.0], [3.0, 4.0, 99.0, 99.0]])[..., None]
    chosen = best(slots, score, np.array([2, 1]))
    assert chosen[..., 0].tolist() == [[1, 3], [1, -1]]
    assert best(slots[:1], torch.ones(1, 4, 1), np.array([2]))[..., 0].tolist() == [[0, 1]], "the first of equal ones"
    state.keep_slots(rows_, [chosen, chosen[:, :1]], np.array([5, 2]), np.array([[2, 1], [1, 1]]))
    assert state.candidates(0, rows_, np.array([7, 2]), 1, CPU)[0][..., 0].tolist() == [[1, 3, 5, 6], [1, -1, -1, -1]]
    assert state.candidates(1, rows_[:1], np.array([6]), 1, CPU)[0][..., 0].tolist() == [[1, 5]]


class Watch:
    """Records the inputs and results of `Cake.evict`."""

    def __init__(self) -> None:
        self.calls: list[tuple[CommittedSlots, list[Tensor], Choice, np.ndarray]] = []
        evict = Cake.evict

        def watched(method: Cake, slots: CommittedSlots, state: Eviction) -> Choice:
            keys = [k[torch.from_numpy(slots.rows)].clone() for k in slots.cache.k]
            choice = evict(method, slots, state)
            self.calls.append((slots, keys, choice, state.budgets.copy()))
            return choice

        self.patch = patch.object(Cake, "evict", watched)


def a_prompt_keeps_what_the_plain_version_keeps_and_nothing_comes_back() -> None:
    model, given = toy_ar(3, 8, 1.5, layers=3), prompts(LENGTHS, vocab=8)
    watch = Watch()
    with watch.patch:
        run(model, f"sequential@{FEW}", given, 8)
    slots, keys, choice, budgets = watch.calls[0]
    assert slots.length.tolist() == list(LENGTHS)
    for row in (0, 1, 2):
        assert budgets[row].sum() == 6 * 3, "six a layer, on average, beside the window"
        each = [naive_attention(slots.queries[at][row], keys[at][row], LENGTHS[row], 4) for at in range(3)]
        liked = [naive_preference(attention, 1.0, 1.0) for attention in each]
        assert budgets[row].tolist() == published([one / sum(liked) for one in liked], 6 * 3, LENGTHS[row] - 4)
        for layer in range(3):
            q, k = slots.queries[layer][row], keys[layer][row]
            expected = naive_kept(q, k, LENGTHS[row], int(budgets[row, layer]), 4, 200.0)
            kept = choice.chosen[layer][row]
            assert [[slot for slot in kept[:, head].tolist() if slot >= 0] for head in range(1)] == expected
    assert (budgets[3] == 0).all(), "the last row still fits"
    for (_, _, before, _), (_, _, after, _) in zip(watch.calls, watch.calls[1:], strict=False):
        for layer in range(3):
            for row in range(4):
                old = {slot for slot in before.chosen[layer][row].flatten().tolist() if slot >= 0}
                new = {slot for slot in after.chosen[layer][row].flatten().tolist() if slot >= 0}
                assert all(slot in old or slot >= before.first[row] for slot in new)
    assert watch.calls[-1][3][3].tolist() == [6, 6, 6], "its queries were gone when it no longer did"
    assert (watch.calls[-1][3][:3] == budgets[:3]).all(), "the other rows keep theirs"


@pytest.mark.parametrize("spec", [FEW, f"{FEW[:-1]}3"])
def test_a_row_alone_is_the_row_in_a_ragged_batch_and_drafts_change_no_promise(spec: str) -> None:
    model, given = toy_ar(3, 8, 1.5, layers=3), prompts(LENGTHS, vocab=8)
    done = run(model, f"sequential@{spec}", given, NEW)
    assert rows(done) != rows(run(model, "sequential", given, NEW))
    for row in range(len(given)):
        assert rows(run(model, f"sequential@{spec}", [given[row]], NEW[row])) == rows(done)[row : row + 1]
    alone = run(model, f"sequential@{spec},reference=true", given[:1], NEW[0])
    assert rows(alone) == rows(done)[:1], "one row shares its budgets with itself"
    for drafter in ("lookup", "layerskip:k=3+template:widths=2-1"):
        run(model, f"{drafter}@{spec}", given, NEW)


def test_a_budget_as_long_as_the_text_changes_nothing() -> None:
    model, given = toy_ar(3, 8, 1.5), prompts(LENGTHS, vocab=8)
    plain, done = (run(model, f"sequential{cache}", given, NEW) for cache in ("", "@cake:budget=60,window=4,refresh=1"))
    assert rows(done) == rows(plain)
    assert (done.trace.commit_score == plain.trace.commit_score).all(), "bit for bit"
    assert registry.resolve("sequential@cake", "ar").exact == "relaxed"


def test_what_was_evicted_is_never_read() -> None:
    model, given = toy_ar(3, 8, 1.5, layers=2), prompts(LENGTHS, vocab=8)
    clean = run(model, f"sequential@{FEW}", given, NEW)
    fill = PartialCache.fill

    def poisoned(
        self: PartialCache, source: Any, which: np.ndarray, chosen: Any, first: np.ndarray, *rest: Any
    ) -> None:
        fill(self, source, which, chosen, first, *rest)
        for layer, kept in enumerate(chosen):
            for index, row in enumerate(which.tolist()):
                gone = sorted(set(range(int(first[index]))) - set(kept[index, :, 0].tolist()))
                source.k[layer][row, gone] = torch.nan
                source.v[layer][row, gone] = torch.nan

    with patch.object(PartialCache, "fill", poisoned):
        assert rows(run(model, f"sequential@{FEW}", given, NEW)) == rows(clean)


@pytest.mark.parametrize("shape", ["chain", "template:widths=3-2-1"])
def test_a_drafter_that_reads_what_is_kept_is_lossless(shape: str) -> None:
    model, given = toy_ar(3, 8, 1.5, layers=3), prompts(LENGTHS, vocab=8)
    expected = [plain_greedy(model, prompt, new) for prompt, new in zip(given, NEW, strict=True)]
    assert rows(run(model, f'sparsekv:read="{FEW}",k=3+{shape}', given, NEW)) == expected


def budgets_stay_as_the_first_eviction_set_them() -> None:
    """A layer that attends evenly over 3 slots, and changes, has the larger budget; the layers then change places."""
    slots: Any = SimpleNamespace(rows=np.arange(1), layers=2, length=np.array([40]))
    steady = torch.tensor([[[[0.98, 0.01, 0.01], [0.97, 0.02, 0.01]]]])
    spread = torch.tensor([[[[0.3, 0.4, 0.3], [0.1, 0.1, 0.8]]]])
    state, stage = Eviction.start(1, 1), Cake(budget=14, window=4)
    budgets = []
    for attentions in ([steady, spread], [spread, steady]):
        stage._share(slots, np.array([True]), attentions, state)
        budgets.append(state.budgets.tolist())
    assert budgets[0][0][0] < budgets[0][0][1]
    assert budgets[1] == budgets[0]


@pytest.mark.seeds("arXiv:2503.12491")
def test_what_the_end_of_a_prompt_attends_to_survives_eviction() -> None:
    """CAKE keeps 25 of 300 tokens per layer on average; a window of 25 has lost the fact that the prompt asks for."""
    a_layers_preference_and_the_indicator_are_those_of_the_formulas()
    budgets_are_the_published_ones_and_never_above_what_there_is()
    the_best_are_kept_in_order_and_candidates_grow_by_what_is_new()
    budgets_stay_as_the_first_eviction_set_them()
    a_prompt_keeps_what_the_plain_version_keeps_and_nothing_comes_back()
    model, drawn, texts = induction(), np.random.RandomState(4), []
    for place in (20, 117, 201):
        text = drawn.permutation(model.vocab_size)[:300].tolist()
        texts.append(text + text[place : place + 8])
    expected = [plain_greedy(model, text, 3) for text in texts]
    watch = Watch()
    with watch.patch:
        done = run(model, "sequential@cake:budget=25,window=8,refresh=1", texts, 3)
    window = run(model, "sequential@streaming:sink=1,window=24", texts, 3)
    budgets = watch.calls[0][3]
    assert (budgets.sum(1) == 2 * 17).all()
    assert rows(done) == expected
    assert not any(row == text for row, text in zip(rows(window), expected, strict=True))
