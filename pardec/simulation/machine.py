"""A machine described by a TOML file: devices, the seconds that parts of models take on them, and links.

[roles]                              which device runs the target, and which one, or several, the drafter
target = "gpu0"
draft = ["gpu1", "gpu2"]

[devices.gpu0.target]                seconds of a layer, and of the head, in a forward of this many tokens:
layer = [2e-4, 1e-6]                 a + b * tokens,
head = 1e-4                          or the same for any number,
[devices.gpu1.draft]
layer = { 1 = 5e-5, 8 = 6e-5 }       or a table, straight lines between its entries

[[links]]
between = ["gpu0", "gpu1"]           both ways
seconds = 2e-6                       of a transfer, and more for each byte
seconds_per_byte = 1e-10

[layers]                             optional: in place of the loaded models' own
target = 80
"""

from __future__ import annotations

import math
import tomllib
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pardec.models.errors import SpecError, did_you_mean

Role = Literal["target", "draft"]
ROLES: tuple[Role, Role] = ("target", "draft")
_HINT = "docs/guides/simulate.md shows a machine file"


@dataclass(frozen=True)
class Cost:
    """Seconds of one part of a forward as a function of its number of tokens.

    >>> Cost(((1, 2.0), (3, 4.0))).of(2), Cost(((0, 1.0), (1, 1.5))).of(4)
    (3.0, 3.0)
    """

    points: tuple[tuple[float, float], ...]  # (tokens, seconds), ascending; straight lines between and beyond them

    def of(self, tokens: float) -> float:
        """Seconds of a forward of `tokens`, extrapolated linearly from the last two entries; never below 0."""
        if len(self.points) == 1:
            return self.points[0][1]
        at = min(max(bisect_left(self.points, (tokens,)), 1), len(self.points) - 1)
        (x, low), (y, high) = self.points[at - 1 : at + 1]
        return max(0.0, low + (high - low) * (tokens - x) / (y - x))


@dataclass(frozen=True)
class Link:
    """Seconds of a transfer between two devices, in either direction."""

    seconds: float = 0.0
    seconds_per_byte: float = 0.0

    def of(self, size: float) -> float:
        """Seconds of a transfer of `size` bytes."""
        return self.seconds + self.seconds_per_byte * size


@dataclass(frozen=True)
class PartCosts:
    """The costs of a model on a device, for each layer and for the head."""

    layer: Cost
    head: Cost = Cost(((1, 0.0),))


@dataclass(frozen=True)
class Machine:
    """Devices, links, and which of them run the target and the drafter."""

    name: str
    target: str
    draft: tuple[str, ...]
    costs: Mapping[tuple[str, Role], PartCosts]
    links: Mapping[frozenset[str], Link] = field(default_factory=dict)
    layers: Mapping[Role, int] = field(default_factory=dict)

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices that have a role, the target's first."""
        return tuple(dict.fromkeys((self.target, *self.draft)))

    def link(self, one: str, other: str) -> Link:
        """The link between two devices; a device is linked to itself at no cost. Raises SpecError for no link."""
        if one == other:
            return Link()
        pair = frozenset((one, other))
        if pair not in self.links:
            raise SpecError(
                f"{self.name}: no link between {one!r} and {other!r}",
                hint=f'[[links]] with between = ["{one}", "{other}"]; seconds = 0 is one that costs nothing',
            )
        return self.links[pair]

    def cost(self, device: str, role: Role) -> PartCosts:
        """The costs of the model of this role on a device. Raises SpecError if the file states none."""
        if (device, role) not in self.costs:
            raise SpecError(
                f"{self.name}: no costs in [devices.{device}.{role}]", hint="it needs layer, and may have head"
            )
        return self.costs[device, role]

    @staticmethod
    def read(path: str | Path) -> Machine:
        """Reads a TOML file. Raises SpecError for entries that are missing, unknown, negative or not numbers."""
        try:
            content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise SpecError(f"cannot read the machine {path}: {reason}", hint=_HINT) from error
        return Machine.of(content, name=Path(path).name)

    @staticmethod
    def of(content: Mapping[str, Any], name: str = "machine") -> Machine:
        """The machine of a TOML file's values; raises the errors of `read`."""
        _known(name, "the file", content, ("roles", "devices", "links", "layers"))
        roles, devices = _table(name, content, "roles"), _table(name, content, "devices")
        _known(name, "[roles]", roles, ROLES)
        if missing := [role for role in ROLES if role not in roles]:
            raise SpecError(f"{name}: [roles] does not say which device is the {missing[0]}'s", hint=_HINT)
        draft = (roles["draft"],) if isinstance(roles["draft"], str) else tuple(roles["draft"])
        for device in (roles["target"], *draft):
            if device not in devices:
                message = f"{name}: [roles] names {device!r}, which is none of [devices]"
                raise SpecError(message + did_you_mean(str(device), devices), hint=f"it has {', '.join(devices)}")
        costs: dict[tuple[str, Role], PartCosts] = {}
        for device, entry in devices.items():
            _known(name, f"[devices.{device}]", entry, ROLES)
            for role in ROLES:
                if role in entry:
                    costs[device, role] = _costs(f"{name}: [devices.{device}.{role}]", entry[role])
        machine = Machine(
            name, roles["target"], draft, costs, _links(name, content.get("links", ()), devices), _layers(name, content)
        )
        machine.cost(machine.target, "target")
        for device in draft:
            machine.cost(device, "draft")
            machine.link(device, machine.target)
        return machine


def _costs(where: str, entry: Any) -> PartCosts:
    if not isinstance(entry, Mapping) or "layer" not in entry:
        raise SpecError(f"{where} does not state the seconds of a layer", hint=_HINT)
    _known(where, "it", entry, ("layer", "head"))
    return PartCosts(**{part: _cost(f"{where}: {part}", value) for part, value in entry.items()})


def _cost(where: str, value: Any) -> Cost:
    hint = "0.0002, or [a, b] for a + b * tokens, or { 1 = 5e-5, 8 = 6e-5 } for a table"
    if isinstance(value, Mapping) and value and all(key.isdecimal() for key in value):
        return Cost(tuple(sorted((int(key), _seconds(where, each)) for key, each in value.items())))
    if isinstance(value, Sequence) and not isinstance(value, str) and len(value) == 2:
        start, slope = (_seconds(where, each) for each in value)
        return Cost(((0, start), (1, start + slope)))
    if isinstance(value, Mapping | Sequence):
        raise SpecError(f"{where} must state seconds, got {value!r}", hint=hint)
    return Cost(((1, _seconds(where, value)),))


def _seconds(where: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise SpecError(f"{where} must be a number of seconds of at least 0, got {value!r}", hint=_HINT)
    return float(value)


def _links(name: str, entries: Any, devices: Mapping[str, Any]) -> dict[frozenset[str], Link]:
    links = {}
    for entry in entries:
        _known(name, "[[links]]", entry, ("between", "seconds", "seconds_per_byte"))
        between = entry.get("between")
        if not isinstance(between, list) or len(set(between)) != 2 or not set(between) <= set(devices):
            raise SpecError(
                f"{name}: [[links]] must be between two of {', '.join(devices)}, got {between!r}", hint=_HINT
            )
        values = {key: _seconds(f"{name}: [[links]] {key}", entry[key]) for key in entry if key != "between"}
        links[frozenset(between)] = Link(**values)
    return links


def _layers(name: str, content: Mapping[str, Any]) -> dict[Role, int]:
    layers = _table(name, content, "layers") if "layers" in content else {}
    _known(name, "[layers]", layers, ROLES)
    for role, count in layers.items():
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise SpecError(f"{name}: [layers] {role} must be a number of at least 1, got {count!r}", hint=_HINT)
    return {role: layers[role] for role in ROLES if role in layers}


def _table(name: str, content: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = content.get(key)
    if not isinstance(value, Mapping):
        raise SpecError(f"{name} has no table [{key}]", hint=_HINT)
    return value


def _known(name: str, where: str, content: Mapping[str, Any], keys: Iterable[str]) -> None:
    for key in content:
        if key not in (known := tuple(keys)):
            raise SpecError(
                f"{name}: {where} has the unknown key {key!r}" + did_you_mean(key, known),
                hint=f"it takes {', '.join(known)}",
            )
