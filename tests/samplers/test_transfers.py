"""Transfers between host and device: their number per step for every method, and the code that may make them.

`python -m tests.samplers.transfer_counts` writes the numbers after a change that lowers them. The fake device changes
PyTorch for a whole process, so these tests run in one of their own: see test_transfers_alone.py.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator

import pytest

import pardec

if "PARDEC_FAKE_DEVICE" not in os.environ:
    pytest.skip("run by test_transfers_alone.py", allow_module_level=True)

from tests.samplers.fake_device import FakeDevice
from tests.samplers.transfer_counts import (
    ABOVE,
    DOWNLOADS,
    PROMPTS,
    ROOT,
    cases,
    crossings,
    listed,
    most,
    name_of,
    of_draft_model,
    options,
)

LISTED = listed()
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
    assert all(found <= known for found, known in zip(most(each), LISTED[name_of(case)], strict=True)), most(each)


@pytest.mark.parametrize(
    ("model", "spec"),
    [
        ("tiny-dream", "threshold"),
        ("tiny-dream", "threshold@dual"),
        ("tiny-dream", "threshold@mlcache"),
        ("tiny-llama", "lookup"),
        ("tiny-llama", "model:name=tiny-llama-draft"),
        ("tiny-llama", "eagle:name=tiny-llama-eagle,k=3+beam:beams=4,nodes=6"),
    ],
)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.covers(1)
def test_tokens_are_those_of_a_cpu(model: str, spec: str, temperature: float, device: FakeDevice) -> None:
    case = (model, spec, temperature)
    found, expected = (
        pardec.load(model, device=where, dtype="float32").generate(PROMPTS, **options(case))
        for where in ("fake:0", "cpu")
    )
    assert found.tokens == expected.tokens
    assert found.nfe == expected.nfe


@pytest.mark.parametrize("name", LISTED)
def test_the_listed_numbers_are_within_the_bound_or_have_a_reason(name: str) -> None:
    downloads, blocking, _ = LISTED[name]
    within = downloads <= DOWNLOADS + of_draft_model(name) and not blocking
    assert within or any(part in name for part in ABOVE)


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
