"""Which layers of its target an EAGLE-3 reads: two conventions share one key.

    "inputs":  id j is what layer j reads, so the output of layer j - 1;  by default 2, L // 2, L - 3
    "outputs": id j is the output of layer j;                             by default 1, L // 2 - 1, L - 4

Both defaults are the same layers. Ids that are one convention's default for the target's L layers are of that
convention. Others are inputs at the top level of a config, as the speculators library writes them, and outputs in its
`eagle_config`, as SGLang reads them; files exist in which it is the other way round: see `agreement` in eagle_check.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import ModelError

_KEY = "eagle_aux_hidden_state_layer_ids"
_LEAST = 7  # with fewer layers, the three default taps are not distinct


@dataclass(frozen=True, slots=True)
class Taps:
    """The layers whose outputs are read (-1 is the embedding), and the reason."""

    layers: tuple[int, ...]
    reason: str
    others: tuple[int, ...] | None = None  # the layers that the other convention reads from the same ids


def find_taps(config: Mapping[str, Any], layers: int, chosen: str | None = None) -> Taps:
    """The taps of a config for a target of `layers`; `chosen`, such as "1-29-57", overrides them.

    Raises ModelError for ids that are no layers, and for a small target whose config names none.
    """
    if chosen is not None:
        return Taps(_checked(_parsed(chosen), layers, f"taps={chosen}"), f"taps={chosen}, outputs")
    nested = config.get("eagle_config") or {}
    if nested.get("use_aux_hidden_state") is False:
        raise ModelError(
            "use_aux_hidden_state is false: an EAGLE-3 without the states of three layers is not supported"
        )
    unstated: tuple[Any, ...] = (None, [])  # files of NVIDIA's Model Optimizer have an empty list
    ids, top = (config[_KEY], True) if config.get(_KEY) not in unstated else (nested.get(_KEY), False)
    inputs, outputs = (2, layers // 2, layers - 3), (1, layers // 2 - 1, layers - 4)
    if ids in unstated:
        if layers < _LEAST:
            raise ModelError(
                f"the config names no layers to read, and {layers} layers are too few for the default three",
                "name three layers: eagle:name=...,taps=0-1-2",
            )
        return Taps(outputs, "no ids in the config: the default, inputs of layers 2, L/2 and L-3")
    if not isinstance(ids, list | tuple) or not all(type(each) is int for each in ids):
        raise ModelError(f"{_KEY} must be a list of layers, got {ids!r}")
    ids = tuple(ids)
    lowered = tuple(each - 1 for each in ids)
    where = "top-level" if top else "eagle_config's"
    if ids == inputs:
        return Taps(_checked(lowered, layers, _KEY), f"{where} ids {_text(ids)} are the default inputs")
    if ids == outputs:
        return Taps(_checked(ids, layers, _KEY), f"{where} ids {_text(ids)} are the default outputs")
    taken, other = (lowered, ids) if top else (ids, lowered)
    kind = "inputs" if top else "outputs"
    reason = f"{where} ids {_text(ids)} are taken as {kind} of layers"
    fits = all(-1 <= each < layers for each in other)
    return Taps(_checked(taken, layers, _KEY), reason, other if fits else None)


def _parsed(text: str) -> tuple[int, ...]:
    parts = str(text).split("-")
    if not all(part.isdecimal() and len(part) < 5 for part in parts):
        raise ModelError(f"taps must be layers joined by '-', got {text!r}", "taps=1-29-57")
    return tuple(map(int, parts))


def _checked(taps: tuple[int, ...], layers: int, what: str) -> tuple[int, ...]:
    if not all(-1 <= each < layers for each in taps) or len(set(taps)) < len(taps):
        raise ModelError(
            f"{what} names outputs of layers {_text(taps)}; the target has layers 0..{layers - 1}",
            "it may be trained for another target; taps=... names other outputs",
        )
    return taps


def _text(ids: tuple[int, ...]) -> str:
    return "-".join(map(str, ids))
