"""Finds the methods that the authors' recorded cases exercise: those whose objects a replay creates."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

from safetensors.torch import load_file

import pardec
from pardec.samplers import registry

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden"
Named = tuple[str, str]  # name and family

FUNCTIONS: dict[str, Named] = {"cspd": ("cspd", "continuous")}  # kinds of cases that call a method's functions alone


class Reached(Exception):
    """Raised when a replay calls `generate`."""


@contextmanager
def made() -> Iterator[set[Named]]:
    """Collects the registered methods whose objects are created inside; nothing is generated."""
    found: set[Named] = set()

    def generate(self: Any, *_: Any, sampler: Any = None, temperature: float = 0.0, **__: Any) -> None:
        registry.resolve(sampler, self.family, sampling=temperature > 0)
        raise Reached

    with ExitStack() as stack:
        for card in registry.cards():
            build = card.make.__init__

            def noted(
                self: Any, *a: Any, _build: Any = build, _of: Named = (card.name, card.family), **kw: Any
            ) -> None:
                found.add(_of)
                _build(self, *a, **kw)

            stack.enter_context(patch.object(card.make, "__init__", noted))
        stack.enter_context(patch.object(pardec.Model, "generate", generate))
        yield found


@cache
def replayed() -> dict[Named, set[str]]:
    """The recorded sets in which each method occurs."""
    sys.path.insert(0, str(ROOT / "scripts"))
    from golden_specs import CALLS, PURE, REPLAYS

    sets: dict[Named, set[str]] = defaultdict(set)
    with made() as found:
        for folder in sorted(path.parent for path in GOLDEN.glob("*/cases.json")):
            cases: list[dict[str, Any]] = json.loads((folder / "cases.json").read_text())
            tensors = load_file(folder / "tensors.safetensors") if (folder / "tensors.safetensors").exists() else {}
            kinds = {}
            for case in cases:
                call = CALLS[case["method"]](case) if case["method"] in CALLS else None
                kinds.setdefault((case["method"], call and call[0]), case)
            for (method, spec), case in kinds.items():
                own = REPLAYS.get(f"{folder.name}/{method}", REPLAYS.get(method))
                found.clear()
                with suppress(Reached):
                    if own is not None and not method.startswith(("vq_", "forward")):
                        own(case, folder, tensors)
                    elif method in PURE:
                        PURE[method](case)
                    elif spec is not None:
                        registry.resolve(spec, "masked")
                for name in {*found, *([FUNCTIONS[method]] if method in FUNCTIONS else [])}:
                    sets[name].add(folder.name)
    return dict(sets)
