"""Machine files: their values, refusals, and costs measured on this machine."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest

from pardec.models.errors import SpecError
from pardec.simulation import Machine
from pardec.simulation.machine import Cost
from pardec.simulation.run import measured
from tests.samplers.ar_toys import toy_ar

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE, GUIDE = ROOT / "examples/two_gpus.toml", ROOT / "docs/guides/simulate.md"
GOOD: dict[str, Any] = {
    "roles": {"target": "a", "draft": ["b", "c"]},
    "devices": {
        "a": {"target": {"layer": [1, 2], "head": 3}},
        "b": {"draft": {"layer": {"1": 1, "3": 2, "4": 2}}},
        "c": {"draft": {"layer": 1}},
    },
    "links": [
        {"between": ["a", "b"], "seconds": 1, "seconds_per_byte": 0.5},
        {"between": ["c", "a"]},
    ],
}


def test_laws_tables_and_links_are_read() -> None:
    machine = Machine.of(GOOD)
    assert machine.devices == ("a", "b", "c")
    target, table, flat = (machine.cost(*where) for where in (("a", "target"), ("b", "draft"), ("c", "draft")))
    assert [target.layer.of(tokens) for tokens in (1, 10)] == [3, 21]
    assert [target.head.of(tokens) for tokens in (1, 10)] == [3, 3]
    assert [table.layer.of(tokens) for tokens in (1, 2, 3, 9)] == [1, 1.5, 2, 2]
    assert (flat.layer.of(7), flat.head.of(7)) == (1, 0)
    assert (machine.link("b", "a").of(4), machine.link("a", "c").of(4), machine.link("a", "a").of(4)) == (3, 0, 0)
    assert Cost(((1, 1.0), (2, 0.5))).of(100) == 0


def test_the_example_is_a_machine() -> None:
    machine = Machine.read(EXAMPLE)
    assert machine.devices == ("gpu0", "gpu1", "gpu2")
    assert machine.cost("gpu0", "target").layer.of(10) == pytest.approx(4.2e-4)


def test_the_file_of_the_guide_is_the_example_without_its_third_device(tmp_path: Path) -> None:
    (shown,) = re.findall(r"^```text\n(.*?)^```", GUIDE.read_text(), re.DOTALL | re.MULTILINE)
    (tmp_path / "machine.toml").write_text(shown)
    machine, example = Machine.read(tmp_path / "machine.toml"), Machine.read(EXAMPLE)
    assert machine.devices == ("gpu0", "gpu1")
    for where in (("gpu0", "target"), ("gpu1", "draft")):
        assert machine.cost(*where) == example.cost(*where)
    assert machine.link("gpu0", "gpu1") == example.link("gpu0", "gpu1")


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("roles", "draft"), "d", "names 'd', which is none of"),
        (("roles", "drafter"), "b", "unknown key 'drafter' .did you mean 'draft'"),
        (("devices", "a", "target", "layer"), -1, "at least 0, got -1"),
        (("devices", "a", "target", "layer"), float("nan"), "at least 0, got nan"),
        (("devices", "a", "target", "layer"), [1], "must state seconds"),
        (("devices", "a", "target", "layer"), True, "got True"),
        (("devices", "b", "draft"), {}, "does not state the seconds of a layer"),
        (("devices", "b"), {"target": {"layer": 1}}, r"no costs in \[devices.b.draft\]"),
        (("devices", "b", "layers"), 3, "unknown key 'layers'"),
        (("links",), [], "no link between 'b' and 'a'"),
        (("links",), [{"between": ["a", "a"]}], "must be between two of a, b, c"),
        (("layers",), {"target": 0}, "at least 1, got 0"),
        (("devices",), 3, r"no table \[devices\]"),
    ],
)
def test_what_is_wrong_is_named(path: tuple[str, ...], value: object, message: str) -> None:
    content = copy.deepcopy(GOOD)
    inner = content
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    with pytest.raises(SpecError, match=message) as error:
        Machine.of(content)
    assert error.value.hint


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("roles = [")
    for name in ("bad.toml", "none.toml"):
        with pytest.raises(SpecError, match=f"cannot read the machine .*{name}"):
            Machine.read(tmp_path / name)


def test_costs_are_measured_here() -> None:
    machine = measured(toy_ar(3, 5), toy_ar(4, 5), devices=2)
    assert machine.devices == ("target", "draft0", "draft1")
    assert machine.cost("target", "target").layer.of(1) > 0
    assert machine.cost("draft1", "draft").head.of(4) > 0
    assert machine.link("draft0", "draft1").of(1e9) == 0
