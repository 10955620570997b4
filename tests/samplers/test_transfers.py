"""Transfers between host and device: their number per step for every method, and the code that may make them.

`python -m tests.samplers.transfer_counts` writes the numbers after a change that lowers them. The fake device changes
PyTorch for a whole process, so these tests run in one of their own: see test_transfers_alone.py.
"""

from __future__ import annotations

import ast
import os
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

import pardec
from pardec.models.errors import ModelError
from pardec.models.host_transfer import Download, download, upload
from pardec.samplers.ops.position_sets import columns_of, first_columns

if "PARDEC_FAKE_DEVICE" not in os.environ:
    pytest.skip("run by test_transfers_alone.py", allow_module_level=True)

from pardec.models.cuda_graphs.runner import GraphRunner
from pardec.samplers.events import Step
from pardec.samplers.masked.contracts import Select
from pardec.samplers.masked.loop import MaskedLoop
from pardec.samplers.masked.recorder import Before
from pardec.samplers.masked.select.fixed import Fixed
from pardec.samplers.masked.select.sequential import Sequential
from tests.samplers.fake_device import DEVICE, FakeDevice, Repeated
from tests.samplers.transfer_counts import (
    KINDS,
    PROMPTS,
    ROOT,
    Case,
    cases,
    crossings,
    listed,
    most,
    name_of,
    of_draft_model,
    options,
)
from tests.samplers.transfer_reasons import ABOVE, DOWNLOADS, reason

LISTED = listed()
EAGLE = "eagle:name=tiny-llama-eagle,k=3"
SAMPLERS = ROOT / "samplers"


@pytest.fixture(scope="module")
def device() -> Iterator[FakeDevice]:
    with FakeDevice() as device:
        yield device


@pytest.mark.parametrize(
    ("spec", "temperature"),
    [
        pytest.param(*one, marks=[pytest.mark.slow] if one[1] else [])
        for one in sorted({(f"{model} {spec}", temperature) for model, spec, temperature in cases()})
    ],
)
def test_a_step_makes_no_more_transfers_than_listed(spec: str, temperature: float, device: FakeDevice) -> None:
    model, _, own = spec.partition(" ")
    case = (model, own, temperature)
    if not (each := crossings(device, case)):
        assert name_of(case) not in LISTED
        pytest.skip("not for this model, or not alone")
    assert name_of(case) in LISTED, f"new: python -m tests.samplers.transfer_counts '{own}' adds its line"
    assert all(found <= known for found, known in zip(most(each), LISTED[name_of(case)], strict=True)), most(each)


@pytest.mark.parametrize(
    ("model", "spec"),
    [
        ("tiny-dream", "threshold"),
        ("tiny-dream", "threshold@dual"),
        pytest.param("tiny-dream", "threshold@mlcache", marks=pytest.mark.slow),
        ("tiny-llama", "lookup"),
        ("tiny-llama", "model:name=tiny-llama-draft"),
        ("tiny-llama", "eagle:name=tiny-llama-eagle,k=3+beam:beams=4,nodes=6"),
        pytest.param("tiny-llama", "eagle:name=tiny-llama-eagle,k=4+dyspec:nodes=6,children=3", marks=pytest.mark.slow),
        ("tiny-llama", 'rasd:model="eagle:name=tiny-llama-eagle,k=3"+beam:beams=3,nodes=4'),
        ("tiny-dream", "adablock"),
        pytest.param("tiny-dream", "adablock+edit:tau=0.1", marks=pytest.mark.slow),
        ("tiny-dream", "slowfast"),
        ("tiny-dream", "dawn:edge=0.01,sink=1,low=0.1,induce=0.1,high=0.2"),
        ("tiny-dream", "prophet:early=0.1,mid=0.1,late=0.1"),
        pytest.param("tiny-dream", "freedave", marks=pytest.mark.slow),
        ("tiny-dream", "threshold@d2cache"),
        ("tiny-dream", "threshold@spa"),
        pytest.param("tiny-llama", "recycling", marks=pytest.mark.slow),
        ("tiny-llama", "lookahead"),
        pytest.param("tiny-llama", "del", marks=pytest.mark.slow),
        pytest.param("tiny-llama", "pearl:name=tiny-llama-draft", marks=pytest.mark.slow),
        pytest.param("tiny-llama", f"{EAGLE}+lantern", marks=pytest.mark.slow),
        ("tiny-llama", f"{EAGLE}@kivi"),
        pytest.param("tiny-llama", f"{EAGLE}@cake:budget=8,window=4,refresh=1", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.covers(1)
def test_tokens_are_those_of_a_cpu(model: str, spec: str, temperature: float, device: FakeDevice) -> None:
    equal_on_both((model, spec, temperature))


@pytest.mark.parametrize(
    ("spec", "temperature"),
    [
        ("freedave:drafts=3+sequential", 2.0),
        ("freedave:width=2,drafts=5+threshold:tau=0.5@dual", 0.0),
        ("freedave:graph=0-1-0.1-0b,subset=true+threshold:tau=0.4", 0.8),
        ("freedave+density+sequential", 0.8),  # whose proposer needs the host
        ("lopa:branches=3+threshold:tau=0.5@dual", 0.8),
        ("lopa+credit+fixed:steps=6", 0.8),  # whose stages have states
    ],
)
def test_hypotheses_are_those_of_a_cpu(spec: str, temperature: float, device: FakeDevice) -> None:
    equal_on_both(("tiny-dream", spec, temperature))


def equal_on_both(case: Case) -> None:
    """Compares a decode on the device with one on the CPU."""
    model = case[0]
    found, expected = (
        pardec.load(model, device=where, dtype="float32").generate(PROMPTS, **options(case))
        for where in ("fake:0", "cpu")
    )
    assert found.tokens == expected.tokens
    assert found.nfe == expected.nfe
    assert found.forward_rows == expected.forward_rows


@pytest.mark.parametrize(
    ("model", "spec"),
    [
        ("tiny-dream", "threshold@d2cache"),
        ("tiny-llama", EAGLE),
        ("tiny-llama", "layerskip"),
        ("tiny-llama", f"{EAGLE}@cake:budget=8,window=4,refresh=1"),
        ("tiny-llama", f"{EAGLE}@retrieval:budget=16,refresh=1"),
        ("tiny-llama", f"{EAGLE}@streaming:sink=2,window=8"),
    ],
)
def test_a_row_alone_transfers_no_more(model: str, spec: str, device: FakeDevice) -> None:
    downloads, blocking, _ = most(crossings(device, (model, spec, 0.0), PROMPTS[1:]))
    assert (downloads, blocking) == (1, 0)


def test_first_columns_of_a_device_are_bounded(device: FakeDevice) -> None:
    which = np.random.RandomState(0).rand(5, 9) < 0.3
    found = first_columns(upload(which, DEVICE), 6, 9)
    assert found.shape == (5, 6)
    known = columns_of(which, 9)
    assert download(found)[:, : known.shape[1]].tolist() == known.tolist()


@pytest.mark.parametrize("name", LISTED)
def test_the_listed_numbers_are_within_the_bound_or_have_a_reason(name: str) -> None:
    downloads, blocking, _ = LISTED[name]
    within = downloads <= DOWNLOADS + of_draft_model(name) and not blocking
    assert within or reason(name)


def test_every_reason_is_needed() -> None:
    above = [name for name, (downloads, blocking, _) in LISTED.items() if blocking or downloads > 1]
    assert [part for part in ABOVE if not any(part in name for name in above)] == []


def test_a_wait_in_a_stage_is_counted(device: FakeDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    from pardec.samplers.masked.select.threshold import Threshold

    select = Threshold.select

    def waiting(self: Threshold, proposal, canvas, state):  # type: ignore[no-untyped-def]
        proposal.score.sum().item()
        return select(self, proposal, canvas, state)

    monkeypatch.setattr(Threshold, "select", waiting)
    assert most(crossings(device, ("tiny-dream", "threshold", 0.0)))[0] == 2


# --- captured steps ---


def captured(device: FakeDevice, name: str = "tiny-dream") -> tuple[pardec.Model, Repeated]:
    """The model with whole steps captured; and the capturer, which counts replays."""
    network = pardec.load(name, device=str(DEVICE), dtype="float32").language_model
    capturer = Repeated(device)
    return pardec.Model(replace(network, decoder=GraphRunner(network.decoder, capturer))), capturer


# One token per step, so that there are many.
@pytest.mark.parametrize(
    "spec",
    [
        "threshold:tau=1",
        "threshold:tau=1@dual",
        pytest.param("sequential@prefix", marks=pytest.mark.slow),
        pytest.param("factor:f=0@dual", marks=pytest.mark.slow),
        pytest.param("entropy_bound:gamma=0", marks=pytest.mark.slow),
        "entropy_threshold:tau=0@dual",
        "fixed@dual",
        "credit+localleap:relaxed=1+threshold:tau=1@dual",
        "sequential@dkv",  # the positions that it computes change at every step
    ],
)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.covers(1)
def test_a_captured_step_is_one_replay_and_one_copy(
    spec: str, temperature: float, device: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, capturer = captured(device)
    asked = {**options(("tiny-dream", spec, temperature)), "max_new_tokens": 18, "stop_ids": []}
    counts = model.language_model.decoder.step_counts  # type: ignore[attr-defined]
    marks, step = list[tuple[int, int, int, int]](), MaskedLoop.step

    def noted(self: MaskedLoop) -> Before | None:
        marks.append((counts["replayed"], capturer.replays, device.launches, len(device.crossings)))
        return step(self)

    monkeypatch.setattr(MaskedLoop, "step", noted)
    deque(model.stream(PROMPTS, **asked), maxlen=0)
    found = list[tuple[int, ...]]()
    for (whole, replays, launches, known), after in pairwise(marks):
        if after[0] > whole:
            kinds = [crossing.kind for crossing in device.crossings[known : after[3]]]
            found.append((after[1] - replays, after[2] - launches, *map(kinds.count, KINDS)))
    assert len(found) >= (4 if "dkv" in spec else 9)
    for replays, launches, downloads, blocking, uploads in found:
        assert (replays, downloads, blocking) == (1, 1, 0)
        assert launches == replays + downloads + uploads
        assert uploads <= 2  # the table, and the window of the next block
    assert "dkv" in spec or sum(uploads == 0 for *_, uploads in found) >= 5
    result = model.generate(PROMPTS, **asked)
    assert result.tokens == pardec.load("tiny-dream", device="cpu", dtype="float32").generate(PROMPTS, **asked).tokens


# --- steps that are read late ---


class Noting(Repeated):
    """Notes each launch in `order`."""

    def __init__(self, device: FakeDevice, order: list[Any]) -> None:
        super().__init__(device)
        self.order = order

    def capture(self, step: Any, inputs: Any) -> Any:
        replay, outputs = super().capture(step, inputs)

        def noted() -> None:
            self.order.append("launch")
            replay()

        return noted, outputs


def noting(device: FakeDevice, monkeypatch: pytest.MonkeyPatch, name: str) -> tuple[pardec.Model, list[Any]]:
    """The model with whole steps captured; and the order of launches, and of transfers asked for and waited for."""
    order = list[Any]()
    init, read = Download.__init__, Download.read

    def asked(self: Download, parts: Any) -> None:
        order.append(("ask", id(self)))
        kept.append(self)
        init(self, parts)

    def waited(self: Download) -> Any:
        order.append(("wait", id(self)))
        return read(self)

    kept = list[Download]()  # so that no id is used twice
    monkeypatch.setattr(Download, "__init__", asked)
    monkeypatch.setattr(Download, "read", waited)
    network = pardec.load(name, device=str(DEVICE), dtype="float32").language_model
    return pardec.Model(replace(network, decoder=GraphRunner(network.decoder, Noting(device, order)))), order


def launches_of(order: list[Any]) -> list[int]:
    """Where whole steps are launched, each of which is followed by its transfer."""
    return [at for at, (one, following) in enumerate(pairwise(order)) if one == "launch" and following[0] == "ask"]


def read_late(order: list[Any]) -> tuple[int, int]:
    """How many replayed steps are waited for after the next launch; and how many before it."""
    launches = launches_of(order)
    waits = [order.index(("wait", order[at + 1][1])) for at in launches[:-1]]
    late = sum(wait > following for wait, following in zip(waits, launches[1:], strict=True))
    return late, len(waits) - late


LATE = {"sampler": "sequential", "max_new_tokens": 24, "block_length": 8, "stop_ids": []}


@pytest.mark.parametrize(
    ("name", "options", "late"),
    [
        ("tiny-llada", {}, 10),
        pytest.param("tiny-llada", {"sampler": "sequential@dual"}, 10, marks=pytest.mark.slow),
        pytest.param(
            "tiny-llada", {"sampler": "credit+fixed:steps=12", "temperature": 0.8, "seed": 3}, 5, marks=pytest.mark.slow
        ),
        pytest.param("tiny-dream", {"sampler": "fixed"}, 10, marks=pytest.mark.slow),
        ("tiny-dream", {"sampler": "sequential@dual"}, 1),  # the first position of its block has to be known
        ("tiny-llada", {"sampler": "threshold:tau=1@dual"}, 0),  # the host does not know how many tokens pass
        pytest.param(
            "tiny-llada", {"sampler": "sequential@dkv"}, 0, marks=pytest.mark.slow
        ),  # it reads the tokens before each forward
        pytest.param("tiny-llada", {"sampler": "localleap+sequential@dual"}, 0, marks=pytest.mark.slow),
        ("tiny-llada", {"sampler": "sequential+eos", "stop_ids": [3]}, 0),  # a row may end, and does
        pytest.param("tiny-llada", {"stop": ["x"]}, 0, marks=pytest.mark.slow),
    ],
)
def test_tokens_that_feed_events_alone_are_read_after_the_next_launch(
    name: str, options: dict[str, Any], late: int, device: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {**LATE, **options}
    model, order = noting(device, monkeypatch, name)
    for _ in range(2):  # the second has all graphs
        order.clear()
        events = []
        for event in model.stream(PROMPTS, **asked):
            events.append(event)
            order.append(type(event).__name__)
    found, at_once = read_late(order)
    assert found >= late
    assert bool(found) == bool(late)
    assert at_once  # where a block is complete
    if not late and "dkv" not in asked["sampler"]:  # no event comes later than it did
        assert all("Step" in order[one:two] for one, two in pairwise(launches_of(order)))
    monkeypatch.setattr(Select, "commits", lambda *_: None)
    for select in (Sequential, Fixed):
        monkeypatch.delattr(select, "commits")
    expected = list(model.stream(PROMPTS, **asked))
    assert [text_of(event) for event in events] == [text_of(event) for event in expected]


def text_of(event: Any) -> str:
    """All fields of an event, as text."""
    with np.printoptions(threshold=sys.maxsize, precision=4):
        return repr(event)


@pytest.mark.parametrize("step", [4, pytest.param(5, marks=pytest.mark.slow)])
def test_what_ends_a_request_early_ends_it_where_it_did(
    step: int, device: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller that leaves, and weights that are damaged, while a step is unread."""
    model, order = noting(device, monkeypatch, "tiny-llada")
    whole = [text_of(event) for event in model.stream(PROMPTS, **LATE)]
    left = model.stream(PROMPTS, **LATE)
    assert [text_of(next(left)) for _ in range(step)] == whole[:step]
    left.close()
    assert read_late(order)[0] > 10
    assert [text_of(event) for event in model.stream(PROMPTS, **LATE)] == whole
    weight = model.language_model.decoder.stack.layers[1].down_weight  # type: ignore[attr-defined]
    sound, errors = weight.inner.clone(), list[str]()
    for late in (True, False):
        if not late:
            monkeypatch.delattr(Sequential, "commits")
        stream = model.stream(PROMPTS, **LATE)
        for _ in range(step):
            next(stream)
        weight.inner.fill_(torch.nan)
        with pytest.raises(ModelError, match="NaN or infinity") as caught:
            deque(stream, maxlen=0)
        errors.append(str(caught.value))
        weight.inner.copy_(sound)
    assert errors[0] == errors[1]


def test_a_select_that_commits_another_number_than_it_says_is_refused(
    device: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Sequential, "commits", lambda self, canvas, state: np.full(len(canvas), 2))
    model, _ = captured(device, "tiny-llada")
    with pytest.raises(RuntimeError, match="sequential committed another number of tokens than it said"):
        model.generate(PROMPTS, **LATE)


@pytest.mark.parametrize(
    ("spec", "most_uploads"),
    [
        ("sequential", 1),  # the table; the first token of a draft is on the device
        ("lookup", 2),  # and the drafted tokens
        ("model:name=tiny-llama-draft,k=3", None),  # those of its own forwards
        (EAGLE, None),
        pytest.param("mtp:name=tiny-llama-mtp,k=3", None, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.covers(1)
def test_a_captured_round_is_one_replay_and_one_copy(
    spec: str, most_uploads: int | None, temperature: float, device: FakeDevice
) -> None:
    model, capturer = captured(device, "tiny-llama")
    asked = {"sampler": spec, "max_new_tokens": 18, "stop_ids": [], "temperature": temperature, "seed": 3}
    counts = model.language_model.decoder.step_counts  # type: ignore[attr-defined]
    replays, crossings, whole, found, steady = 0, 0, 0, 0, False
    for _ in range(2):
        for event in model.stream(PROMPTS, **asked):
            replayed = isinstance(event, Step) and counts["replayed"] > whole
            if replayed and steady:  # not after rows have left, or after a round without a graph
                kinds = [crossing.kind for crossing in device.crossings[crossings:]]
                assert (kinds.count("download"), kinds.count("blocking upload")) == (1, 0)
                if most_uploads is not None:
                    assert capturer.replays == replays + 1
                    assert kinds.count("upload") <= most_uploads
                found += 1
            replays, crossings, whole, steady = capturer.replays, len(device.crossings), counts["replayed"], replayed
    assert found > 3
    result = model.generate(PROMPTS, **asked)
    assert result.tokens == pardec.load("tiny-llama", device="cpu", dtype="float32").generate(PROMPTS, **asked).tokens


def test_a_host_value_in_a_captured_step_is_found(device: FakeDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    from pardec.samplers.masked.select.threshold import Threshold

    select = Threshold.select

    def uploading(self: Threshold, proposal, canvas, state):  # type: ignore[no-untyped-def]
        least = upload(np.full(len(proposal.score), self.tau, np.float32), proposal.score.device)
        return select(self, proposal, canvas, state) & (proposal.score >= least[:, None])

    monkeypatch.setattr(Threshold, "select", uploading)
    model, _ = captured(device)
    model.generate(PROMPTS, **options(("tiny-dream", "threshold", 0.0)))
    counts = model.language_model.decoder.step_counts  # type: ignore[attr-defined]
    assert "refused: a stage reads values of the host" in counts
    assert "replayed" not in counts


# --- the code ---

# Where a call may stand although it would cross: function -> reason.
EXCEPT = {
    "samplers/masked/canvas.py _update item": "the canvas is on a CPU there (`on_host`)",
    "samplers/masked/loop.py predict item": "the canvas is on a CPU there (`on_host`)",
    "samplers/request.py check_ends cpu": "a check before the first step",
    "samplers/speculative/accept/code_features.py codebook_neighbours cpu": "made once for a codebook",
    "samplers/speculative/accept/code_features.py digest cpu": "made once for a codebook",
}


def crossing_calls(tree: ast.AST, function: str = "") -> Iterator[tuple[str, str, int]]:
    """Function, name and line of each call that crosses if its tensor is on a device, or copies a new one there.

    `numpy` is none: on a device it is an error. Which of `bool`, `int`, `tolist` and masks have a tensor, the code does
    not tell: the counts do.
    """
    for node in ast.iter_child_nodes(tree):
        inside = node.name if isinstance(node, ast.FunctionDef | ast.ClassDef) else function
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name, value = node.func.attr, ast.unparse(node.func.value)
            if name in ("item", "cpu", "masked_select", "pin_memory", "new_tensor", "argwhere"):
                yield inside, name, node.lineno
            elif name == "to" and value.startswith("torch.from_numpy("):
                if not ast.unparse(node.args[0]).endswith(".dtype"):
                    yield inside, "from_numpy.to", node.lineno
            elif name in ("tensor", "as_tensor", "asarray") and value == "torch":
                where = [ast.unparse(keyword.value) for keyword in node.keywords if keyword.arg == "device"]
                if where not in ([], ["'cpu'"]):
                    yield inside, f"torch.{name}", node.lineno
        yield from crossing_calls(node, inside)


def test_crossing_calls_are_found() -> None:
    code = """
def f(x, d):
    torch.tensor([1], device=d), torch.from_numpy(a).to(d), y.cpu().numpy()
    torch.tensor([1]), torch.tensor([1], device="cpu"), torch.from_numpy(a).to(x.dtype)
    return x.item()
"""
    found = {(function, name) for function, name, _ in crossing_calls(ast.parse(code))}
    assert found == {("f", name) for name in ("torch.tensor", "from_numpy.to", "cpu", "item")}


def test_only_one_module_crosses() -> None:
    found = {
        f"{path.relative_to(ROOT)} {function} {name}": f"{path.relative_to(ROOT)}:{line} calls {name}"
        for path in sorted(SAMPLERS.rglob("*.py"))
        if path.name != "host_transfer.py"
        for function, name, line in crossing_calls(ast.parse(path.read_text()))
    }
    assert [place for name, place in found.items() if name not in EXCEPT] == []
    assert set(EXCEPT) <= set(found)
