"""`cuda_graphs="auto"`: graphs wherever they can be, and never a refusal."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import pardec
from pardec.models.cuda_graphs.capture import use_graphs
from pardec.models.cuda_graphs.runner import GraphRunner, native, plain_decoder, runner, store_size
from pardec.models.cuda_graphs.static_cache import Stores
from pardec.models.decoder import Decoder
from pardec.models.errors import ArgumentError
from pardec.models.trimmed import trimmed
from tests.models.toys import ask, ids, model
from tests.models.traced import Traced, captured
from tests.samplers import ar_toys

CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")


@pytest.mark.parametrize(
    ("asked", "device", "others", "used"),
    [
        ("auto", CUDA, {}, True),
        ("auto", CUDA, {"tp": False, "device_map": None, "quantize": None}, True),
        ("auto", CUDA, {"tp": True}, False),
        ("auto", CUDA, {"device_map": "auto"}, False),
        ("auto", CUDA, {"quantize": "int8"}, False),
        ("auto", CPU, {}, False),
        ("auto", torch.device("mps"), {}, False),
        ("auto", torch.device("meta"), {}, False),
        (False, CUDA, {}, False),
        (False, CPU, {}, False),
        (True, CUDA, {"quantize": "int8"}, True),
    ],
)
def test_graphs_are_used_as_asked(asked: Any, device: torch.device, others: dict[str, Any], used: bool) -> None:
    assert use_graphs(asked, device, "toy", **others) is used


@pytest.mark.parametrize("asked", ["yes", None, 1, "True"])
@pytest.mark.parametrize("device", [CUDA, CPU])
def test_other_values_are_refused(asked: Any, device: torch.device) -> None:
    with pytest.raises(ArgumentError, match=f"cuda_graphs={asked!r} is unknown") as caught:
        use_graphs(asked, device, "toy")
    assert caught.value.hint == 'use "auto", True or False'


def test_on_a_cpu_auto_changes_nothing() -> None:
    for graphs in ({}, {"cuda_graphs": "auto"}, {"cuda_graphs": False}):
        loaded = pardec.load("tiny-llama", device="cpu", **graphs)
        assert type(loaded.network.decoder) is Decoder
        assert "forwards" not in loaded.environment()
        assert "CUDA" not in repr(loaded)
    for name in ("tiny-mar", "tiny-var"):  # True refuses these by name
        pardec.load(name, device="cpu", cuda_graphs="auto")
        with pytest.raises(ArgumentError, match="cuda_graphs"):
            pardec.load(name, device="cpu", cuda_graphs=True)


def automatic() -> Any:
    other = captured(ar_toys.toy_ar(vocab=11))
    other.decoder.automatic = True
    return other


@pytest.mark.parametrize(
    "spec",
    [
        "sequential@streaming:sink=2,window=6",
        "sequential@channels:heavy=4",
        "sequential@lminfinite:sink=2,window=6",
        "sequential@retrieval:budget=8,chunk=2",
        'sparsekv:read="retrieval:budget=8,chunk=2"',
        'sparsekv:read="channels:heavy=6",k=3',
        "lookup@kivi",
    ],
)
def test_caches_that_cannot_be_captured_run_as_they_come(spec: str) -> None:
    plain, other, given = ar_toys.toy_ar(vocab=11), automatic(), ar_toys.prompts([5, 9], vocab=11)
    one, two = (ar_toys.run(each, spec, given, [8, 20]) for each in (plain, other))
    assert ar_toys.rows(one) == ar_toys.rows(two)
    assert one.nfe == two.nfe
    assert set(other.decoder.counts) == {"a cache of others"}


def test_graphs_asked_for_by_name_refuse_what_they_cannot_capture() -> None:
    named = captured(ar_toys.toy_ar(vocab=11))
    with pytest.raises(pardec.PardecError, match="or use CUDA graphs"):
        ar_toys.run(named, "sequential@channels:heavy=4", ar_toys.prompts([5], vocab=11), 8)
    assert plain_decoder(named.decoder) is None
    assert native(named.decoder) is plain_decoder(automatic_of(named)) is not None


def automatic_of(named: Any) -> GraphRunner:
    return GraphRunner(named.decoder.stack, Traced(list), automatic=True)


def test_a_head_of_few_ids_keeps_the_graphs() -> None:
    plain, other = model(), captured(model())
    other.decoder.automatic = True
    cut = trimmed(other, [3, 7, 9])
    assert runner(cut.decoder) is other.decoder
    place = torch.arange(3)[None]
    plan = ask(ids(1, 3), place, plain.visible(), torch.tensor([3]))
    cache = cut.new_cache(1, 20)
    for _ in range(3):
        found = cut.forward(plan, cache).logits()
    expected = plain.forward(plan, plain.new_cache(1, 20)).logits()
    torch.testing.assert_close(found[..., [3, 7, 9]], expected[..., [3, 7, 9]], atol=1e-5, rtol=1e-4)
    assert other.decoder.counts["replayed"] == 1


def test_idle_memory_is_given_back_where_a_new_cache_does_not_fit() -> None:
    plain, dropped, fails = model(), list[int](), [False]

    def make(rows: int, slots: int) -> Any:
        if fails and fails.pop():
            raise torch.OutOfMemoryError("CUDA out of memory")
        return plain.decoder.new_cache(rows, slots)

    stores = Stores(make, store_size, dropped.append)
    first = stores.acquire(1, 100)
    stores.release(first)
    assert stores.nbytes == sum(part.nbytes for part in (*first.k, *first.v))
    fails.append(True)
    assert stores.acquire(1, 500).size == (1, 512)
    assert dropped == [first.number]
    assert stores.nbytes == 0
