"""A training starts from an exported drafter: the same loss, the same ids, and contradictions are refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import pardec
from pardec.models.errors import ModelError
from pardec.training.export import read_export
from pardec.training.losses import loss
from pardec.training.networks import KINDS, Options, Target
from pardec.training.run import Plan, Run, prepare
from pardec.training.states import States

SHAPE = {"heads": 2, "rank": 4, "block": 4, "unroll": 2, "mlp_width": 64, "mask_id": 4, "ramp": (0.0, 0.1)}
ROWS = [(list(range(20, 30 + n % 5)), [40 + (n * 7 + at) % 60 for at in range(12)]) for n in range(12)]


@pytest.fixture(scope="module")
def states(model: pardec.Model, tmp_path_factory: pytest.TempPathFactory) -> States:
    states = States(tmp_path_factory.mktemp("texts") / "states", (0, 1, 2), model.network)
    states.update({"rows": ROWS}, 100)
    return states


def planned(kind: str, folder: Path, name: str, **more: object) -> Plan:
    return Plan(kind, name, folder / f"{name}-out", folder / name, steps=4, batch=100, validation=2, drafts=2, **more)


@pytest.mark.parametrize("kind", [*KINDS, "eagle with a head of its own"])
def test_a_run_starts_from_an_export_with_its_loss_and_goes_on(
    kind: str, model: pardec.Model, states: States, tmp_path: Path
) -> None:
    kind, _, own = kind.partition(" ")
    vocab = 120 if kind in ("eagle", "dflash") else None
    shape = Options(**SHAPE, vocab=vocab, tied=not own)
    first = Run(Target(model.network), states, planned(kind, tmp_path, "first", network=shape))
    first.take()
    first.evaluate()
    with torch.no_grad():
        for name, value in first.parameters.items():
            value.copy_(first.average[name].bfloat16())

    chosen = {"unroll": 2, "ramp": (0.0, 0.1)}
    plan = planned(kind, tmp_path, "second", init=tmp_path / "first-out")
    second = prepare(model.network, {"rows": ROWS}, plan, chosen, folder=tmp_path, longest=100)
    ids = (first.network.ids, second.network.ids)
    assert (ids[0] is None) == (ids[1] is None) == (vocab is None)
    assert ids[0] is None or ids[1] is None or torch.equal(*ids)
    for name, value in first.network.export()[1].items():
        torch.testing.assert_close(second.network.export()[1][name], value, rtol=1e-2, atol=1e-3)

    def error(run: Run) -> float:
        run.network.progress = 1.0
        batch = states.batch(states.texts[:6])
        with torch.no_grad():
            return float(run.network.loss(batch, loss("fkl"), torch.Generator().manual_seed(0))[0])

    assert error(second) == pytest.approx(error(first), rel=0.01)
    batch = states.batch(states.texts[:6])
    same = (first.network.chain(batch, 2) == second.network.chain(batch, 2)).float().mean()
    assert same > 0.9  # near ties of a drafter that has learned nothing yet
    before = {name: value.detach().clone() for name, value in second.parameters.items()}
    second.take()
    second.take()
    assert any(not torch.equal(value, before[name]) for name, value in second.parameters.items())
    second.save()
    resumed = prepare(model.network, {"rows": ROWS}, plan, chosen, folder=tmp_path, longest=100)
    assert resumed.step == 2


def test_an_embedded_drafter_is_a_start(model: pardec.Model, states: States, tmp_path: Path) -> None:
    for kind in KINDS:
        plan = planned(kind, tmp_path, kind, init=f"tiny-llama-{kind}")
        run = prepare(model.network, {"rows": ROWS}, plan, {}, folder=tmp_path, longest=100)
        assert run.recipe()["started from"] == f"tiny-llama-{kind}"


@pytest.mark.parametrize(
    ("init", "chosen", "message", "hint"),
    [
        ("tiny-llama-medusa", {"heads": 3}, "exported with heads 4, got 3", "write --heads 4, or leave"),
        ("tiny-llama-eagle", {"vocab": 64}, "exported with all ids", "leave --vocab out"),
        ("tiny-llama-eagle", {"taps": (0, 1, 3)}, "taps 0-1-2, got 0-1-3", "write --taps 0-1-2"),
        ("tiny-llama-eagle", {"tied": False}, "tied True", "leave --own-head out"),
        ("tiny-llama-dflash", {"block": 8}, "block 6", "--block 6"),
        ("smollm2-eagle", {}, "the target has layers 0..3", "trained for another target"),
        ("tiny-llama-hydra", {"kind": "medusa"}, "of kind hydra, not medusa", "--kind hydra"),
    ],
)
def test_what_contradicts_the_export_is_refused_with_what_is_right(
    init: str, chosen: dict[str, object], message: str, hint: str, model: pardec.Model, states: States, tmp_path: Path
) -> None:
    kind = str(chosen.pop("kind", init.rpartition("-")[2]))
    with pytest.raises(ModelError, match=message) as error:
        prepare(
            model.network, {"rows": ROWS}, planned(kind, tmp_path, "a", init=init), chosen, folder=tmp_path, longest=100
        )
    assert hint in (error.value.hint or "")


def test_a_drafter_of_another_target_is_refused(model: pardec.Model, states: States, tmp_path: Path) -> None:
    start = read_export("tiny-llama-eagle", model.network)
    files = replace(start.files, config={**start.files.config, "hidden_size": 64, "rope_theta": 5e5})
    network = KINDS["eagle"](Target(model.network), start.options({}))
    with pytest.raises(ModelError, match=r"hidden_size 64 instead of 192.*rope_theta 500000"):
        replace(start, files=files).load(network, states)
