"""Label channels: their ranking, the slots that a query attends to by labels, and decoding with them."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

from pardec.models.caches.label_channels import LabelReader, calibrate, heaviest, importance, read_labels, write_labels
from pardec.models.errors import ModelError, SpecError
from pardec.models.kernels.attention import AttentionPattern
from pardec.models.plan import Plan
from pardec.samplers import registry
from pardec.samplers.speculative.cache import channels
from tests.samplers.ar_toys import plain_greedy, prompts, rows, run, toy_ar
from tests.samplers.copying_model import CODE, induction

LENGTHS, NEW = (30, 12, 41, 7), (12, 15, 6, 18)
FEW = "channels:heavy=4,window=8,sink=1,calibration=5"


def naive(q: Tensor, k: Tensor) -> Tensor:
    """[K, D/2]: importance from queries [n, H, D] and keys [n, K, D], product by product."""
    heads, half = k.shape[1], k.shape[2] // 2
    sums = torch.zeros(heads, half, dtype=torch.float64)
    group = q.shape[1] // heads
    for at in range(len(q)):
        for head in range(q.shape[1]):
            for d in range(2 * half):
                sums[head // group, d % half] += abs(float(q[at, head, d] * k[at, head // group, d]))
    return sums / len(q) / group


def pairs_are_ranked_by_the_products_of_queries_and_keys() -> None:
    assert channels.importance is importance
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(5, 6, 8, generator=generator), torch.randn(5, 2, 8, generator=generator)
    assert torch.allclose(importance(q, k).double(), naive(q, k), atol=1e-6)
    ranked = channels.Channels()._ranked(q[None], k[None], np.array([5]))
    assert ranked[0].tolist() == naive(q, k).argsort(-1, True).tolist()
    model = toy_ar(3, 8, layers=2)
    texts = prompts((9, 4), vocab=8)
    sums = [torch.zeros(1, 4, dtype=torch.float64) for _ in range(2)]
    for text in texts:
        order, cache = torch.arange(len(text))[None], model.new_cache(1, len(text))
        size = torch.tensor([len(text)])
        plan = Plan(torch.tensor([text]), order, order, model.visible(), size, order, queries=len(text))
        queries = model.run(plan, cache).queries
        for layer in range(2):
            sums[layer] += naive(queries[layer][0], cache.k[layer][0, : len(text)]) * len(text)
    assert [each.tolist() for each in calibrate(model, texts)] == [each.argsort(-1, True).tolist() for each in sums]
    with pytest.raises(ModelError, match="at least one text"):
        calibrate(model, [[]])


def seen_by(q: Tensor, k: Tensor, pairs: list[int], heavy: int, visible: list[bool], near: list[bool]) -> list[bool]:
    """The slots that one query [D] attends to among keys [S, D], slot by slot."""
    half = len(q) // 2
    labels = [channel for pair in pairs for channel in (pair, pair + half)]
    scores = {s: sum(float(q[c] * k[s, c]) for c in labels) for s in range(len(k)) if visible[s] and not near[s]}
    chosen = sorted(scores, key=lambda s: -scores[s])[:heavy]
    return [visible[s] and (near[s] or s in chosen) for s in range(len(k))]


def a_query_sees_its_best_slots_and_attends_to_them_alone() -> None:
    generator = torch.Generator().manual_seed(1)
    batch, queries, heads, kv, dim, slots = 2, 3, 4, 2, 8, 14
    q = torch.randn(batch, queries, heads, dim, dtype=torch.float64, generator=generator)
    k, v = (torch.randn(batch, slots, kv, dim, dtype=torch.float64, generator=generator) for _ in range(2))
    labels = torch.tensor([[[0, 2], [3, 1]], [[1, 2], [0, 1]]])
    positions = torch.tensor([[10, 11, 12], [11, 12, 13]])
    visible = (torch.arange(slots) <= positions[..., None])[:, None]
    near = (torch.arange(slots) > positions[..., None] - 2) | (torch.arange(slots) < 1)
    seen = heaviest(q, k, labels, 3, visible, near)
    for b in range(batch):
        for h in range(heads):
            for i in range(queries):
                expected = seen_by(
                    q[b, i, h], k[b, :, h // 2], labels[b, h // 2].tolist(), 3,
                    visible[b, 0, i].tolist(), near[b, i].tolist(),
                )  # fmt: skip
                assert seen[b, h, i].tolist() == expected
    mask = torch.zeros(visible.shape, dtype=q.dtype).masked_fill_(~visible, -torch.inf)
    pattern = AttentionPattern("reference", slots, mask=mask)
    reader = LabelReader([labels], 3, 1, 2, positions, torch.arange(slots).expand(batch, -1))
    out = reader.attend(0, q, k, v, pattern, None)
    keys, values = (each.repeat_interleave(2, 2) for each in (k, v))
    scores = torch.einsum("bqhd,bshd->bhqs", q, keys) / math.sqrt(dim)
    weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
    assert (out - torch.einsum("bhqs,bshd->bqhd", weights, values)).abs().max() < 1e-12
    unseen = ~seen.view(batch, kv, 2, queries, slots).any(3).any(2)  # [B, K, S]
    assert unseen.any()
    poison = v.masked_fill(unseen.transpose(1, 2)[..., None], torch.nan)
    assert torch.equal(reader.attend(0, q, k, poison, pattern, None), out)
    one = torch.tensor([[2], [0]])
    picked = reader.narrowed(one).attend(0, q[[[0], [1]], one], k, v, pattern.narrowed(one), None)
    assert (picked - out[[[0], [1]], one]).abs().max() < 1e-12


def test_a_prompt_with_fewer_tokens_than_calibrate_is_ranked_by_all_of_them_alike() -> None:
    """A forward repeats a short row's first query up to the number that is kept; its key is not repeated."""
    model, given = toy_ar(3, 8, 1.5, layers=3), prompts((12, 5), vocab=8)
    done = run(model, "sequential@channels:heavy=2,window=2,sink=1,calibration=64", given, 14)
    for row, prompt in enumerate(given):
        fits = f"sequential@channels:heavy=2,window=2,sink=1,calibration={len(prompt)}"
        alone = run(model, fits, [prompt], 14)
        assert done.trace.commit_score[row, : len(prompt) + 14].tolist() == pytest.approx(
            alone.trace.commit_score[0].tolist(), abs=1e-5
        )


def test_a_budget_as_long_as_the_text_changes_nothing() -> None:
    model, given = toy_ar(3, 8, 1.5), prompts(LENGTHS, vocab=8)
    plain, done = (run(model, f"sequential{cache}", given, NEW) for cache in ("", "@channels:heavy=50"))
    assert rows(done) == rows(plain)
    assert (done.trace.commit_score == plain.trace.commit_score).all(), "bit for bit"
    assert registry.resolve("sequential@channels", "ar").exact == "relaxed"


@pytest.mark.parametrize("drafter", ["lookup", "layerskip:k=3+template:widths=2-1"])
def test_what_is_seen_depends_on_the_text_alone(drafter: str) -> None:
    """Other rows of the batch, and the number of verified tokens per forward, have no influence."""
    model, given = toy_ar(3, 8, 1.5, layers=3), prompts(LENGTHS, vocab=8)
    done = run(model, f"sequential@{FEW}", given, NEW)
    assert rows(done) != rows(run(model, "sequential", given, NEW))
    assert rows(run(model, f"{drafter}@{FEW}", given, NEW)) == rows(done)
    for row in range(len(given)):
        assert rows(run(model, f"sequential@{FEW}", [given[row]], NEW[row])) == rows(done)[row : row + 1]


@pytest.mark.parametrize("drafter", ["recycling:tree=3-3-2", "layerskip:k=3+template:widths=2-2-1"])
def test_the_window_of_a_node_counts_positions_and_not_slots(drafter: str) -> None:
    """A tree's nodes are stored beyond their positions: a parent before the window is seen for its labels only."""
    model, given = toy_ar(3, 8, 1.5, layers=3), prompts(LENGTHS, vocab=8)
    few = "channels:heavy=3,window=1,sink=1"
    done = run(model, f"{drafter}@{few}", given, 30)
    assert rows(done) == rows(run(model, f"sequential@{few}", given, 30))
    assert max(count for row in done.trace.accepted for count in row) > 1


@pytest.mark.parametrize("shape", ["chain", "template:widths=3-2-1"])
def test_a_drafter_that_reads_through_labels_is_lossless(shape: str) -> None:
    model, given = toy_ar(3, 8, 1.5, layers=3), prompts(LENGTHS, vocab=8)
    expected = [plain_greedy(model, prompt, new) for prompt, new in zip(given, NEW, strict=True)]
    done = run(model, f'sparsekv:read="{FEW}",k=3+{shape}', given, NEW)
    assert rows(done) == expected
    whole = run(model, f'sparsekv:read="channels:heavy=60",k=3+{shape}', given, 13)
    assert whole.trace.accepted == ((0, 3, 3, 3),) * 4
    assert max(count for row in done.trace.accepted for count in row) > 0


def test_labels_of_a_file_are_read_before_the_prompt_is(tmp_path: Path) -> None:
    model, given = toy_ar(3, 8, 1.5), prompts(LENGTHS, vocab=8)
    file = write_labels(tmp_path, calibrate(model, prompts((40,), vocab=8, seed=9)))
    assert [each.shape for each in read_labels(file, model, 2)] == [(1, 2)] * 2
    spec = f"sequential@{FEW},file={file}"
    done = run(model, spec, given, NEW)
    assert rows(run(model, spec, given[:1], NEW[0])) == rows(done)[:1]
    with pytest.raises(ModelError, match="does not match the layers and heads"):
        run(toy_ar(3, 8, layers=3), spec, given, NEW)
    with pytest.raises(ModelError, match="lists no label channels"):
        run(model, f"sequential@{FEW},file={tmp_path / 'none.json'}", given, NEW)
    with pytest.raises(ModelError, match="4 pairs of channels, got pairs=5"):
        run(model, "sequential@channels:pairs=5", given, NEW)
    with pytest.raises(SpecError, match="replaces"):
        registry.resolve(f'sparsekv:read="{FEW}"@streaming', "ar")


@pytest.mark.seeds("arXiv:2408.07092")
def test_a_few_channels_find_the_fact_that_others_lose(tmp_path: Path) -> None:
    """Double Sparsity: 24 of 300 slots, chosen by a fifth of the channels, decode like all slots.

    The channels that calibration ranks last do not, nor does a window of as many slots.
    """
    pairs_are_ranked_by_the_products_of_queries_and_keys()
    a_query_sees_its_best_slots_and_attends_to_them_alone()
    each_row_ranks_the_keys_of_its_own_last_tokens()
    test_a_prompt_with_fewer_tokens_than_calibrate_is_ranked_by_all_of_them_alike()
    test_the_window_of_a_node_counts_positions_and_not_slots("recycling:tree=3-3-2")
    model, drawn, texts = induction(), np.random.RandomState(3), []
    for place in (20, 117, 201):
        text = drawn.permutation(model.vocab_size)[:300].tolist()
        texts.append(text + text[place : place + 12])
    expected = [plain_greedy(model, text, 8) for text in texts]
    spec = f"sequential@channels:heavy=24,window=6,sink=1,calibration=8,pairs={CODE // 4}"
    assert rows(run(model, spec, texts, 8)) == expected
    ranking = calibrate(model, texts[:1])
    assert rows(run(model, f"{spec},file={write_labels(tmp_path, ranking)}", texts, 8)) == expected
    last = write_labels(tmp_path, [layer.flip(-1) for layer in ranking])
    for other in (f"{spec},file={last}", "sequential@streaming:sink=1,window=30"):
        assert not any(row == text for row, text in zip(rows(run(model, other, texts, 8)), expected, strict=True))


def each_row_ranks_the_keys_of_its_own_last_tokens() -> None:
    """Prompts of 6 and 4 tokens, of which the last 3 count; a sixteenth of 32 pairs are 2; sinks are seen."""
    generator = torch.Generator().manual_seed(4)
    q, k = torch.randn(2, 3, 4, 8, generator=generator), torch.randn(2, 6, 2, 8, generator=generator)
    ranked = channels.Channels()._ranked(q, k, np.array([6, 4]))
    for row, keys in enumerate((k[0, 3:], k[1, 1:4])):
        assert ranked[row].tolist() == naive(q[row], keys).argsort(-1, True).tolist()
    assert channels.Channels()._pairs(SimpleNamespace(k=[torch.zeros(1, 1, 1, 64)])) == 2  # type: ignore[arg-type]
    model, given = toy_ar(3, 8, 1.5), prompts((12,), vocab=8)
    plain, sinks = (
        run(model, f"sequential{cache}", given, [9]) for cache in ("", "@channels:heavy=1,window=1,sink=30")
    )
    assert rows(sinks) == rows(plain)
