"""The floor: bytes and operations counted by hand, measured rates, and models of published shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import pardec
from pardec.bench.decode import _parts, _predict, prepare
from pardec.bench.floor import Rates, floor, rates
from pardec.bench.parts import PARTS, Fed, Split, split, uncached
from pardec.bench.shapes import SHAPES, build, shaped
from pardec.models.decoder import Decoder
from pardec.models.errors import ModelError
from pardec.models.families import FAMILIES, mar
from pardec.models.loading import assemble
from pardec.samplers.events import Finished

LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
    "intermediate_size": 12, "vocab_size": 20, "max_position_embeddings": 64, "tie_word_embeddings": False,
}  # fmt: skip
PUBLISHED = {"llada-8b": 8_015_581_184, "dream-7b": 7_615_616_512, "llamagen-xl": 774_000_000}


def test_bytes_and_operations_are_those_counted_by_hand() -> None:
    decoder = build("little", LLAMA, device="cpu", dtype="float32").language_model.decoder
    assert isinstance(decoder, Decoder)
    # a layer: q 8 x 8, k and v 4 x 8 each, out 8 x 8, and 3 matrices of 12 x 8; the head 20 x 8
    first, others, head = 8 * 16, 8 * 8 + 3 * 96, 160
    one = Fed(rows=2, width=3, extent=5, last=6, cached=True)
    made = floor(decoder, [one], 4, Rates(100.0, 1000.0, 0))
    weights = 2 * (first + others) + head
    assert made.bytes == 4 * (weights + 6 * 8 + 2 * 2 * 4 * 5 * 2)  # weights, embeddings, K and V of 2 layers, 2 rows
    products = 2 * 2 * 6 * (first + others) + 2 * head * 4
    assert made.operations == products + 2 * 6 * 5 * (2 * 2 * 8)  # scores and sums, 2 operations each, 2 layers
    assert made.seconds == max(made.bytes / 100, made.operations / 1000)


def test_what_the_last_layer_leaves_out_is_not_counted() -> None:
    decoder = build("little", LLAMA, device="cpu", dtype="float32").language_model.decoder
    assert isinstance(decoder, Decoder)
    whole, narrow = (floor(decoder, [Fed(1, 4, 4, last, False)], 1, Rates(1.0, 1.0, 0)) for last in (4, 1))
    assert whole.operations - narrow.operations == 3 * (2 * (64 + 288) + 4 * 8 * 4)
    assert whole.bytes == narrow.bytes


def test_the_uncached_step_feeds_what_the_first_of_a_decode_without_a_cache_does(model: pardec.Model) -> None:
    cached, whole = (prepare(model, f"sequential@{cache}", 2, 8, 8, 4) for cache in ("dual", "none"))
    seconds, fed, heads = uncached(model.language_model, cached)
    assert seconds > 0
    assert fed == split(model.network, whole).fed[:1]
    assert fed[0].width == 16
    assert heads == 2 * 4  # the block's open positions


def test_a_prediction_is_the_uncached_step_times_the_share_of_operations(model: pardec.Model) -> None:
    full, window = Fed(1, 1024, 1024, 32, False), Fed(1, 33, 1024, 32, True)
    measured = Rates(1.0, 1.0, 0)
    none = dict.fromkeys(PARTS, 0.0)
    whole = Split(none, 4, np.zeros(0), (full,) * 4, 4 * 32, 0)
    assert _predict(model, whole, [12.0], [(2.0, (full,), 32)], measured)["over_predicted"] == pytest.approx(12 / 8)
    windows = Split(none, 2, np.zeros(0), (full, window), 2 * 32, 0)
    decoder = model.language_model.decoder
    assert isinstance(decoder, Decoder)
    share = floor(decoder, [window], 32, measured).operations / floor(decoder, [full], 32, measured).operations
    found = _predict(model, windows, [3.0, 9.0, 4.0], [(2.0, (full,), 32)] * 3, measured)
    assert found == {"uncached_step_s": 2.0, "over_predicted": pytest.approx(4.0 / (2.0 * (1 + share)))}
    assert _predict(model, windows, [3.0], [], measured) == {"uncached_step_s": None, "over_predicted": None}


def test_rates_are_plausible() -> None:
    found = rates(torch.device("cpu"), torch.float32, 1 << 20)
    assert 1e8 < found.bandwidth < 1e13
    assert 1e8 < found.operations < 1e15
    assert found.buffer_bytes == 1 << 20


@pytest.mark.parametrize("name", PUBLISHED)
def test_shapes_have_as_many_numbers_as_published(name: str) -> None:
    spec = next(spec for spec in FAMILIES.values() if spec.matches(SHAPES[name]))
    count = sum(weight.numel() for weight in assemble.empty(spec.decoder(SHAPES[name])).parameters())
    assert count == pytest.approx(PUBLISHED[name], rel=0.002 if name != "llamagen-xl" else 0.01)


def test_mar_l_has_as_many_numbers_as_published() -> None:
    with torch.device("meta"):
        count = sum(weight.numel() for part in mar.networks(SHAPES["mar-l"]) for weight in part.parameters())
    assert count == pytest.approx(478e6, rel=0.01)


def test_random_models_decode_and_are_the_same_by_seed() -> None:
    grid = {"model_type": "llamagen", "gpt_type": "c2i", "dim": 16, "n_layer": 1, "n_head": 2, "vocab_size": 20}
    for config in (LLAMA, LLAMA | {"model_type": "Dream", "tie_word_embeddings": True}, grid | {"block_size": 16}):
        model = build("little", config, device="cpu", dtype="float32")
        call = prepare(model, "sequential", 2, 0, 6, None)
        *_, last = model.run(call, steps=False)
        assert isinstance(last, Finished)
        again = split(build("little", config, device="cpu", dtype="float32").network, call)
        assert (again.tokens == last.tokens).all()
        assert again.tokens.shape == (2, 7)


def test_an_unknown_shape_is_named() -> None:
    with pytest.raises(ModelError, match="did you mean 'llada-8b'"):
        shaped("llada-8")


@pytest.mark.parametrize(
    ("device", "runs", "readings", "host", "clock"),
    [
        ("cpu", (4.0, 3.9), 10**6, 0.3, 0.2),  # the shortest runs differ by 0.4 in two steps
        ("cpu", (4.0, 3.9), 2 * 10**4, 0.4, 0.1),  # 20,000 readings take 0.2 seconds at most
        ("cpu", (5.0, 4.5), 10**6, 0.5, 0.0),  # a run that was shorter with a clock says nothing
        ("cpu", (1.0, 1.0), 10**6, 0.0, 0.5),
        ("cuda", (4.0, 3.9), 10**6, 0.5, 0.0),
    ],
)
def test_the_clock_is_no_part(device: str, runs: tuple[float, float], readings: int, host: float, clock: float) -> None:
    seconds = {"backbone": 2.0, "head": 0.5, "draft": 0.0, "decision": 0.8, "host": 1.0}
    parts, spent = _parts([Split(seconds, 2, np.zeros(0), (), 0, readings)] * 2, runs, torch.device(device))
    assert (parts["backbone"], parts["decision"]) == (1.0, 0.4)
    assert (parts["host"], spent) == pytest.approx((host, clock))
