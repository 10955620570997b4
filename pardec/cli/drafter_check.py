"""`pardec show DRAFTER --target MODEL`: what a draft module loads as, and whether it reads the right layers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .common import columns, dump, say, show


def check_drafter(name: str, target: str, rows: Sequence[Path], *, json_: bool) -> None:
    """Prints how `name` loads for `target`; for an EAGLE, also its agreement for each meaning of its layer ids."""
    import pardec

    from ..training.self_check import self_check

    model = pardec.load(target)
    result = self_check(model, name, rows)
    module, agreement = result.module, result.agreement
    entry: dict[str, Any] = {
        "name": module.name,
        "kind": module.kind,
        "target": model.name,
        "parameters": module.parameter_count,
        "path": str(module.path),
        "loads": list(module.about),
    }
    if agreement is not None:
        readings = [(agreement.layers, agreement.share)]
        if agreement.others is not None:
            readings.append((agreement.others, agreement.other_share))
        entry["positions"] = result.positions
        entry["agreement"] = [
            {"layers": list(layers), "share": round(share, 4), "read": layers == agreement.layers}
            for layers, share in readings
        ]
    if json_:
        dump(entry)
    else:
        show("\n".join(_lines(entry)))
    if agreement is not None and agreement.warning:
        say(f"warning: {agreement.warning}")


def _lines(entry: dict[str, Any]) -> list[str]:
    lines = [f"{key}: {entry[key]}" for key in ("name", "kind", "target", "parameters", "path")]
    lines += [f"loads: {line}" for line in entry["loads"]]
    if "agreement" not in entry:
        return [*lines, f"agreement: not measured, since the files of a {entry['kind']} can be read in one way only"]
    rows = [
        (
            f"  layers {', '.join(map(str, reading['layers']))}" if reading["layers"] else "  the last state",
            f"{reading['share']:.1%}",
            "these are read" if reading["read"] else "the other numbering of the same ids",
        )
        for reading in entry["agreement"]
    ]
    lines.append(f"agreement with the target's likeliest token, at {entry['positions']} positions of its own text")
    return [*lines, columns(rows)]
