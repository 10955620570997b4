"""Two runs compared bit by bit, logits compared with the definitions', and the bound of the model's own matmuls."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import pardec
from pardec.bench import decode
from pardec.bench.decode import Differs, bench, prepare
from pardec.bench.fair import FairBound
from pardec.bench.parts import Fed
from pardec.bench.repeatability import place, repeats, teacher_forced
from pardec.bench.report import DECODE, markdown

SPECS = [("tiny-dream", "sequential@none"), ("tiny-dream", "threshold@dual"), ("tiny-llama", "lookup")]


def loaded(name: str, dtype: str = "float32") -> pardec.Model:
    return pardec.load(name, device="cpu", dtype=dtype)


def request(model: pardec.Model, spec: str) -> Any:
    return prepare(model, spec, 1, 12, 8, 8 if model.family == "masked" else None)


def break_layer(model: pardec.Model, layer: int, wrong: Any) -> None:
    """Adds what `wrong` returns, in waves, to the states after a layer."""
    broken: Any = model.language_model.decoder.layers[layer]
    real = broken.forward

    def forward(*arguments: Any, **more: Any) -> torch.Tensor:
        h: torch.Tensor = real(*arguments, **more).clone()
        h += wrong() * torch.arange(h.numel()).view(h.shape).sin()
        return h

    broken.forward = forward


@pytest.mark.parametrize(("name", "spec"), SPECS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_runs_repeat_and_logits_are_the_definitions(name: str, spec: str, dtype: str) -> None:
    model = loaded(name, dtype)
    found = repeats(model.language_model, request(model, spec))
    assert (found["different"], found["forwards"] > 1) == (0, True)
    assert place(found).startswith("equal in")
    logits = teacher_forced(model.language_model, request(model, spec))
    assert logits["within"], logits
    assert logits["forwards"] == found["forwards"]


@pytest.mark.parametrize(("name", "spec"), SPECS)
@pytest.mark.parametrize(("layer", "step"), [(0, 1), (2, 2)])
def test_the_first_layer_and_step_that_differ_are_named(name: str, spec: str, layer: int, step: int) -> None:
    """A layer whose states change from one run to the next, from some forward on."""
    model, calls = loaded(name), [0]
    wrong_at = [0]

    def later() -> float:
        calls[0] += 1
        return 1e-3 if calls[0] == wrong_at[0] else 0.0

    break_layer(model, layer, later)
    wrong_at[0] = repeats(model.language_model, request(model, spec))["forwards"] + step + 1
    calls[0] = 0
    found = repeats(model.language_model, request(model, spec))
    assert (found["first_step"], found["first_layer"]) == (step, layer)
    assert place(found) == f"step {step}, layer {layer} is the first that differs"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_kernel_that_is_wrong_is_not_within_the_tolerance(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    model = loaded("tiny-dream", dtype)
    monkeypatch.delenv("PARDEC_KERNELS", raising=False)
    break_layer(model, 1, lambda: 0.0 if os.environ.get("PARDEC_KERNELS") == "reference" else 50.0)
    found = teacher_forced(model.language_model, request(model, "sequential@dual"))
    assert not found["within"]
    assert found["furthest"] > found["tolerance"]
    assert os.environ.get("PARDEC_KERNELS") is None


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_decode_that_varies_stops_float32_and_is_reported_in_16_bits(dtype: str) -> None:
    model, calls = loaded("tiny-dream", dtype), [0]

    def wild() -> float:
        calls[0] += 1
        return float(calls[0])

    break_layer(model, 1, wild)
    ask = {"batches": (1,), "contexts": (12,), "new": (8,), "pairs": 1, "beside": False}
    if dtype == "float32":
        with pytest.raises(Differs, match="compared bit by bit: step 0, layer 1 is the first that differs"):
            list(bench(model, ["sequential@none"], **ask))  # type: ignore[arg-type]
        return
    (row,) = bench(model, ["sequential@none"], **ask)  # type: ignore[arg-type]
    assert row["repeats"]["first_layer"] == 1
    assert "no, step 0, layer 1" in markdown(DECODE, [row])


def test_the_fair_bound_takes_the_rows_of_each_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each number of rows is timed once, over all matrices of all layers and the head."""
    model = loaded("tiny-llama")
    stack: Any = model.language_model.decoder
    bound, sizes = FairBound(stack), list[list[int]]()
    assert bound.known

    def timed(run: Any, device: torch.device) -> float:
        seen: list[int] = []
        monkeypatch.setattr("pardec.bench.fair.matmul", lambda x, weight: seen.append(len(x)))
        run()
        sizes.append(seen)
        return float(sum(seen))

    monkeypatch.setattr("pardec.bench.fair.best", timed)
    fed = [Fed(1, 20, 20, 1, True), Fed(1, 1, 21, 1, True), Fed(1, 1, 22, 1, True)]
    layers = len(stack.layers)
    prompt, one = 20 * (4 * layers - 3) + 3 + 1, 4 * layers + 1
    assert bound.of(fed, 3) == prompt + 2 * one
    assert len(sizes) == 2


def test_a_row_has_the_fair_bound_and_its_checks() -> None:
    (row,) = bench(loaded("tiny-dream"), ["sequential@dual"], batches=(1,), new=(8,), pairs=1, beside=False)
    assert row["fair_s"] > 0
    assert row["over_fair"] == row["step_s"] / row["fair_s"]
    assert row["same_tokens"]
    assert row["repeats"]["different"] == 0
    table = markdown(DECODE, [row])
    assert all(name in table for name in ("fair bound", "time / fair", "repeats", "logits apart"))
    assert decode.place(row["repeats"]).startswith("equal")
