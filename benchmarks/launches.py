"""Counts the kernels that one layer launches on a GPU; needs no GPU.

    python benchmarks/launches.py

The tensors are on the device "meta", which holds no numbers, and the kernels are those that a GPU's tensors take. An
operation of PyTorch counts as one launch, except for views and memory that is only reserved; a sum that goes elsewhere
than to its first part counts twice, since that is copied before. Triton's kernels are counted where they
would start. Libraries may start more than one kernel for an operation, as split matmuls do.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from pardec.bench.published import config_of  # noqa: E402
from pardec.bench.report import Column, markdown  # noqa: E402
from pardec.models.decoder_config import DecoderConfig  # noqa: E402
from pardec.models.families import FAMILIES  # noqa: E402
from pardec.models.kernels import ops  # noqa: E402
from pardec.models.loading import assemble  # noqa: E402
from pardec.models.plan import Plan, Visible  # noqa: E402

META = torch.device("meta")
ARCHITECTURE = 90  # the architecture that Triton would compile for
_RESERVES = ("aten::empty", "aten::new_empty", "prim::")
PROMPT, WINDOW = 448, 32


class Launches(TorchDispatchMode):
    """Counts the operations that start work on a GPU, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **kwargs or {})
        name = func._schema.name
        if name == "aten::scaled_dot_product_attention":  # kernels of a GPU return the memory layout of the queries
            result = torch.empty_like(args[0].transpose(1, 2)).transpose(1, 2)
        outputs = [each for each in tree_leaves(result) if isinstance(each, Tensor)]
        if not name.startswith(_RESERVES) and any(each.is_meta for each in outputs):
            inputs = {_memory(each) for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)}
            if func._schema.is_mutable or any(_memory(each) not in inputs for each in outputs):
                self.counts[name] += 1
                if name == "aten::addmm" and not func._schema.is_mutable and args[0].dim() == 2:
                    self.counts["copy"] += 1
        return result

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Counts operations of PyTorch and Triton's launches, of which none runs."""
        from triton.runtime import jit

        def start(kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
            self.counts[kernel.fn.__name__.strip("_")] += 1

        def chosen(device: torch.device, dtype: torch.dtype | None = None, *, suited: bool = True) -> str:
            return "triton" if suited else "reference"

        ops._known.cache_clear()
        target = SimpleNamespace(arch=ARCHITECTURE)
        active = SimpleNamespace(get_current_target=lambda: target)
        with (
            patch.object(jit.JITFunction, "run", start),
            patch.object(jit, "driver", SimpleNamespace(active=active)),
            patch.object(ops, "backend", chosen),
            torch.inference_mode(),
            self,
        ):
            yield
        ops._known.cache_clear()


def _memory(tensor: Tensor) -> int:
    address: int = tensor.untyped_storage()._cdata
    return address


@dataclass(frozen=True, slots=True)
class Forward:
    """The last `queries` of `length` positions, with a cache or without."""

    queries: int
    length: int
    cached: bool = False
    captured: bool = False  # as a CUDA graph: only the device knows the positions

    def plan(self, visible: Visible) -> Plan:
        order = torch.arange(self.length - self.queries, self.length, device=META)[None]
        lengths = torch.full((1,), self.length, device=META)
        plan = Plan(order, order, order, visible, lengths, order - (self.length - self.queries))
        if self.captured:
            return replace(plan, fixed=True)
        return replace(plan, uniform=self.length, span=(self.length - self.queries, self.length))

    def __str__(self) -> str:
        cache = f"a cache of {self.length}{', captured' if self.captured else ''}" if self.cached else "no cache"
        return f"{self.queries} {'query' if self.queries == 1 else 'queries'}, {cache}"


def of_a_layer(config: DecoderConfig, forward: Forward, visible: Visible, dtype: torch.dtype) -> Counter[str]:
    """The launches that one more layer adds to a forward."""
    found = []
    for layers in (2, 1):
        decoder = assemble.empty(replace(config, layers=layers)).eval()
        launches = Launches()
        for name, weight in list(decoder.named_parameters()):
            owner, _, leaf = name.rpartition(".")
            weight = nn.Parameter(torch.empty(weight.shape, dtype=dtype, device=META), requires_grad=False)
            setattr(decoder.get_submodule(owner), leaf, weight)
        cache = decoder.new_cache(1, forward.length) if forward.cached else None
        with launches.counting():
            decoder.forward(forward.plan(visible), cache)
        found.append(launches.counts)
    return found[0] - found[1]


def bench(shapes: Sequence[str] = ("llada-8b", "qwen3-8b")) -> list[dict[str, Any]]:
    """One row per shape and kind of forward, in bfloat16 at a batch of one."""
    rows, length = [], PROMPT + WINDOW
    for shape in shapes:
        raw = config_of(shape)
        spec = next(spec for spec in FAMILIES.values() if spec.matches(raw))
        causal = spec.attention == "causal"
        visible, queries = (Visible.causal(), 1) if causal else (Visible.bidirectional(), WINDOW)
        forwards = [Forward(length, length), *(Forward(queries, length, True, captured) for captured in (False, True))]
        for forward in forwards:
            counts = of_a_layer(spec.decoder(raw), forward, visible, torch.bfloat16)
            row = {"shape": shape, "forward": str(forward), "launches": counts.total(), "counts": dict(counts)}
            rows.append(row)
    return rows


COLUMNS: tuple[Column, ...] = (
    ("shape", lambda row: row["shape"]),
    ("forward", lambda row: row["forward"]),
    ("launches per layer", lambda row: str(row["launches"])),
    ("of them", lambda row: ", ".join(f"{count} {name}" for name, count in sorted(row["counts"].items()))),
)


def table() -> str:
    """The counts as a table."""
    return markdown(COLUMNS, bench())


if __name__ == "__main__":
    print(table())
