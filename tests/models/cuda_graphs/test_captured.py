"""Captured forwards compared with uncaptured ones; on a CPU, recorded operations replace CUDA graphs."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from pardec.models.cuda_graphs.capture import CaptureError, Graphs
from pardec.models.cuda_graphs.runner import GraphRunner
from pardec.models.errors import CapacityError
from pardec.models.plan import Plan, Visible, plan_on
from tests.models.toys import VOCAB, ask, ids, model, poisoned
from tests.models.traced import Traced, captured

SLOTS = 13
PLACES = torch.tensor([[9, 2, 0, 5, 1], [6, -1, 3, 4, -1], [1, 0, 2, 3, -1]])
LENGTHS = torch.tensor([11, 7, 4])


def patterns() -> dict[str, Visible]:
    drawn = torch.Generator().manual_seed(1)
    return {
        "bidirectional": Visible.bidirectional(),
        "causal": Visible.causal(),
        "block": Visible.segments(4),
        "segments": Visible.segments(ids=torch.randint(0, 3, (3, SLOTS), generator=drawn).sort(-1).values),
        "mask": Visible.mask(torch.rand(3, 5, SLOTS, generator=drawn) < 0.6),
        "tree": Visible.tree(torch.tensor([-1, 0, 0, 1, 2]), torch.tensor([6, 3, 0])),
        "trees": Visible.tree(
            torch.tensor([[-1, 0, 0, 1, 2], [-1, 0, 1, 1, 3], [-1, 0, 0, 0, 3]]), torch.tensor([6, 3, 0])
        ),
    }


def plans(kind: str, **more: Any) -> list[Plan]:
    """Three plans of one shape with different tokens; for trees, slots begin at the base."""
    visible, slots = patterns()[kind], PLACES
    if visible.base is not None:
        slots = torch.where(PLACES < 0, -1, visible.base[:, None] + torch.arange(5))
    return [ask(ids(3, 5, seed=at), PLACES, visible, LENGTHS, slots=slots, **more) for at in range(3)]


def both(asked: list[Plan], *, cached: bool = True, rows: int = 3) -> tuple[list[Any], list[Any], GraphRunner]:
    """The results of the plans, one after the other, uncaptured and captured; each way has its own cache."""
    plain = model()
    other = captured(plain)
    found = []
    for each in (plain, other):
        cache = poisoned(each.new_cache(rows, SLOTS)) if cached else None
        if cache is not None:  # what the plans see and do not write
            for tensor in (*cache.k, *cache.v):
                tensor[:, :12] = torch.randn(rows, 12, 2, 8, generator=torch.Generator().manual_seed(3))
        found.append([each.forward(plan, cache) for plan in asked])
    assert isinstance(other.decoder, GraphRunner)
    return found[0], found[1], other.decoder


def agree(ours: list[Any], theirs: list[Any], real: Tensor) -> None:
    for one, two in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.logits()[real], two.logits()[real], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", patterns())
@pytest.mark.parametrize("cached", [True, False], ids=["cache", "no cache"])
@pytest.mark.covers(1)
def test_a_recorded_forward_gives_what_the_stack_gives(kind: str, cached: bool) -> None:
    asked, real = plans(kind), PLACES >= 0
    if not cached:  # a query's slot is its index, and what is past a length is padding
        lengths = torch.tensor([5, 4, 3])
        place = torch.arange(5).expand(3, 5)
        real = place < lengths[:, None]
        place = place.masked_fill(~real, -1)
        asked = [replace(plan, positions=place, slots=place, lengths=lengths) for plan in asked]
    ours, theirs, stack = both(asked, cached=cached)
    agree(ours, theirs, real)
    assert stack.counts == {"the first of its shape": 1, "recorded": 1, "replayed": 1}


@pytest.mark.parametrize(
    "more",
    [
        {"skip": frozenset({(1, "attn"), (2, "mlp")})},
        {"layers": slice(None, 2)},
        {"layers": slice(1, None), "soft": torch.randn(3, 5, 32, generator=torch.Generator().manual_seed(4))},
        {"soft": torch.randn(3, 5, 32, generator=torch.Generator().manual_seed(4))},
        {"rows": torch.tensor([4, 0, 2])},
    ],
    ids=["skip", "first layers", "last layers", "soft", "rows"],
)
def test_parts_of_a_plan_are_recorded_too(more: dict[str, Any]) -> None:
    ours, theirs, stack = both(plans("causal", **more), rows=5 if "rows" in more else 3)
    agree(ours, theirs, PLACES >= 0)
    assert stack.counts["replayed"] == 1


def test_taps_and_narrow_forwards_keep_their_shapes() -> None:
    wanted = torch.tensor([[3], [2], [0]])
    tapped = [replace(plan, hidden=(0, 1)) for plan in plans("causal")]
    narrow = [replace(plan, want=wanted, narrow=True) for plan in plans("causal")]
    ours, theirs, _ = both(tapped)
    for one, two in zip(ours, theirs, strict=True):
        assert two.taps.keys() == {0, 1}
        for layer in (0, 1):
            torch.testing.assert_close(one.taps[layer][PLACES >= 0], two.taps[layer][PLACES >= 0])
    ours, theirs, _ = both(narrow)
    agree(ours, theirs, torch.ones(3, 1, dtype=torch.bool))
    assert theirs[2].narrowed
    assert theirs[2].states.shape == (3, 1, 32)


def test_what_the_host_knows_is_not_captured() -> None:
    """A moving window and a growing length need one captured shape only: values known to the host are not captured."""
    order = torch.arange(2)
    asked = []
    for start in (0, 2, 4, 6, 3):
        tokens, place = ids(1, 2, seed=start), (start + order)[None]
        length = start + 2
        asked.append(
            Plan(tokens, place, place, Visible.causal(), torch.tensor([length]), place * 0 + order, uniform=length,
                 span=(start, length))
        )  # fmt: skip
    ours, theirs, stack = both(asked, rows=1)
    agree(ours, theirs, torch.ones(1, 2, dtype=torch.bool))
    assert stack.counts == {"the first of its shape": 1, "recorded": 1, "replayed": 3}


def windows(kind: str, lengths: list[int], start: int = 20, width: int = 20) -> list[Plan]:
    """Forwards of one row's window from `start` on, over a text of each of these lengths, as the host knows them."""
    visible = Visible.bidirectional() if kind == "bidirectional" else Visible.causal()
    place = (start + torch.arange(width))[None]
    want = torch.arange(width)[None]
    return [
        Plan(ids(1, width, seed=length), place, place, visible, torch.tensor([length]), want, uniform=length,
             span=(start, start + width))
        for length in lengths
    ]  # fmt: skip


def masks_of(network: GraphRunner) -> list[bool]:
    """Whether attention has a mask, for each captured forward and layer."""
    found = []
    for program in network._capturer.programs:  # type: ignore[attr-defined]
        for func, given in program.operations:
            if "scaled_dot_product" in str(func):
                found.append(any(word.startswith("v") for each in given[3:] for word in each.split("=")))
    return found


def test_windows_of_a_lasting_canvas_are_captured_without_a_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pardec.models.cuda_graphs.runner._LASTING", 2)
    plain = model("bidirectional")
    other = captured(plain)
    for canvas in (60, 90):  # each length has a graph of its own
        caches = [each.new_cache(1, canvas) for each in (plain, other)]
        whole = Plan.full(ids(1, canvas), Visible.bidirectional())
        for each, cache in zip((plain, other), caches, strict=True):
            each.forward(whole, cache)
        for start in (20, 0, 30, 40, 10):
            (plan,) = windows("bidirectional", [canvas], start)
            one, two = (each.forward(plan, cache) for each, cache in zip((plain, other), caches, strict=True))
            torch.testing.assert_close(one.logits(), two.logits(), atol=1e-5, rtol=1e-4)
    # The graph of the first two forwards over each canvas learns the length from the device.
    assert other.decoder.counts == {"the first of its shape": 6, "recorded": 4, "replayed": 2}
    assert masks_of(other.decoder) == 2 * ([True] * 3 + [False] * 3)


@pytest.mark.parametrize("kind", ["bidirectional", "causal"])
def test_lengths_that_grow_read_a_power_of_two_of_slots(kind: str) -> None:
    plain = model(kind)
    other = captured(plain)
    caches = [poisoned(each.new_cache(1, 600)) for each in (plain, other)]
    for cache in caches:
        for tensor in (*cache.k, *cache.v):
            tensor[:, :550] = torch.randn(1, 550, 2, 8, generator=torch.Generator().manual_seed(3))
    for plan in windows(kind, [40, 41, 127, 128, 129, 255, 256, 500, 511]):
        one, two = (each.forward(plan, cache) for each, cache in zip((plain, other), caches, strict=True))
        torch.testing.assert_close(one.logits(), two.logits(), atol=1e-5, rtol=1e-4)
    assert other.decoder.counts == {"the first of its shape": 3, "recorded": 3, "replayed": 3}


@pytest.mark.parametrize("visible", [Visible.bidirectional(), Visible.causal()], ids=["bidirectional", "causal"])
def test_without_a_cache_what_the_host_knows_is_captured(visible: Visible) -> None:
    plain = model()
    other = captured(plain)
    for seed in range(3):
        plan = Plan.full(ids(2, 20, seed=seed), visible)
        one, two = (each.forward(plan) for each in (plain, other))
        torch.testing.assert_close(one.logits(), two.logits(), atol=1e-5, rtol=1e-4)
    ragged = replace(plan, uniform=None, span=None, lengths=torch.tensor([20, 11]))
    one, two = (each.forward(ragged) for each in (plain, other))
    torch.testing.assert_close(one.logits()[1, :11], two.logits()[1, :11], atol=1e-5, rtol=1e-4)
    assert other.decoder.counts == {"the first of its shape": 2, "recorded": 1, "replayed": 1}
    assert not any(masks_of(other.decoder))


def test_new_weights_are_not_read_from_an_old_recording() -> None:
    network = captured(model())
    cache = network.new_cache(3, SLOTS)
    for plan in plans("causal"):
        network.forward(plan, cache)
    network.decoder.stack.weights_version += 1
    network.forward(plan, cache)
    assert network.decoder.counts == {"the first of its shape": 2, "recorded": 1, "replayed": 1}


def test_rows_that_leave_and_uneven_widths_share_recordings() -> None:
    plain = model()
    other = captured(plain)
    caches = [each.new_cache(8, 64) for each in (plain, other)]
    length = torch.zeros(8, dtype=torch.int64)
    for step, (rows, width) in enumerate([(8, 3), (8, 4), (7, 3), (6, 4), (5, 3), (5, 4), (3, 3), (3, 4), (3, 3)]):
        if rows < len(length):
            kept = torch.randperm(len(length), generator=torch.Generator().manual_seed(step))[:rows]
            length = length[kept]
            for cache in caches:
                cache.keep(kept)
        place = length[:, None] + torch.arange(width)
        length = length + width
        plan = ask(ids(rows, width, seed=step), place, Visible.causal(), length)
        one, two = (each.forward(plan, cache) for each, cache in zip((plain, other), caches, strict=True))
        torch.testing.assert_close(one.logits(), two.logits(), atol=1e-5, rtol=1e-4)
    assert other.decoder.counts == {"the first of its shape": 2, "recorded": 2, "replayed": 5}


def test_the_next_request_finds_the_memory_and_the_recordings() -> None:
    network = captured(model())
    place = torch.arange(3)[None]
    for request in range(4):
        cache = network.new_cache(1, 20 + request)
        network.forward(ask(ids(1, 3), place, Visible.causal(), torch.tensor([3])), cache)
        del cache
        gc.collect()
    assert network.decoder.counts == {"the first of its shape": 1, "recorded": 1, "replayed": 2}


def test_two_requests_at_once_have_memory_of_their_own() -> None:
    plain = model()
    other = captured(plain)
    place = torch.arange(3)[None]
    caches = [[each.new_cache(1, 20) for _ in range(2)] for each in (plain, other)]
    made: list[list[Tensor]] = [[], []]
    for step in range(8):
        plan = ask(ids(1, 3, seed=step), place + 3 * (step // 2), Visible.causal(), torch.tensor([3 + 3 * (step // 2)]))
        for at, each in enumerate((plain, other)):
            made[at].append(each.forward(plan, caches[at][step % 2]).logits())
    torch.testing.assert_close(made[0], made[1], atol=1e-5, rtol=1e-4)


def test_results_outlive_the_next_forward() -> None:
    network = captured(model())
    cache = network.new_cache(3, SLOTS)
    asked = [replace(plan, hidden=(0,)) for plan in plans("causal")]
    made = [network.forward(plan, cache) for plan in asked]
    kept = made[2].states.clone(), made[2].taps[0].clone()
    network.forward(asked[0], cache)
    assert torch.equal(made[2].states, kept[0])
    assert torch.equal(made[2].taps[0], kept[1])


def test_a_cache_grows_and_takes_rows_of_others() -> None:
    plain = model()
    other = captured(plain)
    place = torch.arange(4).expand(2, 4)
    made = []
    for each in (plain, other):
        cache, joining = each.new_cache(2, 8), each.new_cache(1, 200)
        each.forward(ask(ids(2, 4), place, Visible.causal(), torch.tensor([4, 4])), cache)
        each.forward(ask(ids(1, 4, seed=7), place[:1], Visible.causal(), torch.tensor([4])), joining)
        cache.put(torch.tensor([1]), joining)
        plan = ask(ids(2, 4, seed=8), place + 4, Visible.causal(), torch.tensor([8, 8]))
        made.append([each.forward(plan, cache).logits() for _ in range(3)])
        assert cache.capacity == 200
    torch.testing.assert_close(made[0], made[1], atol=1e-5, rtol=1e-4)
    assert other.decoder.counts["replayed"] == 1


def test_what_does_not_fit_is_refused_as_without() -> None:
    network = captured(model())
    cache = network.new_cache(3, 10)
    assert cache.capacity == 10
    with pytest.raises(CapacityError, match="the plan needs 11 slots and the cache has 10"):
        network.forward(plans("causal")[0], cache)


def test_tables_that_grow_do_not_take_what_was_captured() -> None:
    plain = model()
    other = captured(plain)
    place = torch.arange(3)[None]
    plan = ask(ids(1, 3), place, Visible.causal(), torch.tensor([3]))
    cache = other.new_cache(1, 20)
    first = [other.forward(plan, cache).logits() for _ in range(3)][-1]
    tables = other.decoder.rope.tables()
    other.forward(plan, other.new_cache(1, 5000))
    assert {id(table) for table in tables} - {id(table) for table in other.decoder.rope.tables()}
    assert torch.equal(other.forward(plan, cache).logits(), first)


def test_few_recordings_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pardec.models.cuda_graphs.runner._MOST", 2)
    network = captured(model())
    cache = network.new_cache(1, 100)
    for width in (20, 21, 22):
        plan = ask(ids(1, width), torch.arange(width)[None], Visible.causal(), torch.tensor([width]))
        for _ in range(2):
            network.forward(plan, cache)
    assert network.decoder.describe() == "forwards: 3 the first of its shape, 3 recorded; 2 shapes kept"
    network.forward(ask(ids(1, 20), torch.arange(20)[None], Visible.causal(), torch.tensor([20])), cache)
    assert network.decoder.counts["recorded"] == 4


def test_memory_that_is_dropped_takes_its_recordings_along() -> None:
    network = captured(model())
    for capacity in (100, 200, 300, 400, 500):
        cache = network.new_cache(1, capacity)
        for _ in range(2):
            network.forward(ask(ids(1, 3), torch.arange(3)[None], Visible.causal(), torch.tensor([3])), cache)
        del cache
    gc.collect()
    network.new_cache(1, 600)
    assert network.decoder.describe().endswith("; 2 shapes kept")


class Reading:
    """A stack that changes its input by an operation that cannot be captured."""

    def __init__(self, how: str) -> None:
        self.inner, self.how = model().decoder, how
        self.rope, self.new_cache = self.inner.rope, self.inner.new_cache

    def __call__(self, plan: Plan, cache: Any = None) -> Any:
        if self.how == "value":
            plan = replace(plan, tokens=(plan.tokens + int(plan.lengths.max())) % VOCAB)
        elif self.how == "list":
            plan = replace(plan, tokens=(plan.tokens + plan.lengths.tolist()[0]) % VOCAB)
        elif self.how == "shape":
            plan = replace(plan, tokens=(plan.tokens + len(plan.lengths[plan.lengths > 4])) % VOCAB)
        elif self.how == "host":
            plan = replace(
                plan, tokens=(plan.tokens + torch.tensor([[3, 1, 2, 0, 0, 0, 0, 0]])[:, : plan.width]) % VOCAB
            )
        return self.inner(plan, cache)


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("value", "needs the host"),
        ("list", "tolist needs the host"),
        ("shape", "aten.index.Tensor depends on values"),
        ("host", "was made on the host"),
    ],
)
def test_a_stack_that_needs_the_host_runs_as_it_comes_and_says_so(how: str, why: str) -> None:
    bare: Any = Reading(how)
    stack = GraphRunner(bare, Traced(lambda: [*bare.inner.parameters(), *bare.rope.tables()]))
    caches = [bare.new_cache(3, SLOTS), stack.new_cache(3, SLOTS)]
    with torch.inference_mode():
        for plan in plans("causal"):
            one, two = bare(plan, caches[0]), stack(plan, caches[1])
            torch.testing.assert_close(one.logits(), two.logits(), atol=1e-5, rtol=1e-4)
    assert "recorded" not in stack.counts
    assert sum(count for said, count in stack.counts.items() if why in said) == 2
    assert why in stack.describe()


def test_forwards_that_keep_attention_run_as_they_come_whatever_was_recorded() -> None:
    asked = [*plans("bidirectional"), replace(plans("bidirectional")[0], attention=(1,))]
    ours, theirs, stack = both(asked)
    assert stack.counts == {"the first of its shape": 1, "recorded": 1, "replayed": 1, "attention is kept": 1}
    torch.testing.assert_close(ours[-1].attention[1], theirs[-1].attention[1])


def test_wide_forwards_other_caches_and_gradients_run_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pardec.models.cuda_graphs.runner._WIDEST", 14)
    network = captured(model())
    foreign, own = network.decoder.stack.new_cache(3, SLOTS), network.new_cache(3, SLOTS)
    for plan in plans("causal"):
        network.forward(plan, own)
    monkeypatch.setattr("pardec.models.cuda_graphs.runner._WIDEST", 15)
    for plan in plans("causal"):
        network.forward(plan, foreign)
        network.decoder(plan, own)
    assert network.decoder.counts == {"more than 14 queries": 3, "a cache of others": 3, "gradients are on": 3}


def test_a_recorder_that_refuses_is_asked_once_a_shape() -> None:
    class Never:
        asked = 0

        def capture(self, step: Any, inputs: Any) -> Any:
            self.asked += 1
            raise CaptureError("no")

    never, plain = Never(), model()
    network = replace(plain, decoder=GraphRunner(plain.decoder, never))
    cache = network.new_cache(3, SLOTS)
    for plan in plans("causal") * 2:
        network.forward(plan, cache)
    assert never.asked == 1
    assert network.decoder.counts == {"the first of its shape": 1, "refused: no": 5}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")
def test_cuda_graphs_give_what_the_stack_gives() -> None:
    plain = model()
    plain.decoder.to("cuda")
    plain = replace(plain, device=torch.device("cuda"))
    other = replace(plain, decoder=GraphRunner(plain.decoder, Graphs()))
    for kind in ("causal", "bidirectional", "block", "tree"):
        caches = [each.new_cache(3, 20) for each in (plain, other)]
        for cache in caches:
            for tensor in (*cache.k, *cache.v):
                tensor.zero_()
        for plan in plans(kind):
            placed = plan_on(plan, torch.device("cuda"))
            one, two = (each.forward(placed, cache) for each, cache in zip((plain, other), caches, strict=True))
            torch.testing.assert_close(one.logits()[PLACES >= 0], two.logits()[PLACES >= 0], atol=1e-3, rtol=1e-3)
    assert other.decoder.counts["replayed"] == 4
