"""`pardec bench decode` and `pardec bench kernels`: times, next to the hardware's minimum and other loops."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import typer

from pardec.models.errors import SpecError
from pardec.models.files import arguments as loading
from pardec.samplers.spec_values import MAX_INT_PARAM

from ..bench.published import config_of
from ..io import output_paths
from ..io.prompt_files import read_file
from ..requests import chat_template, preflight
from . import options as o
from .common import Json, print_table, say
from .inputs import integers

bench = typer.Typer(help="Time decoding and kernels, next to the hardware's minimum.")


@bench.command()
@o.command
def decode(
    *,
    model: o.Timed = None,
    shape: o.Shapes = None,
    sampler: o.Samplers = None,
    batch: o.Batches = "1,8",
    new: o.NewTokens = "64",
    context: o.Contexts = "0",
    prompts: o.TimedPrompts = None,
    chat: o.Chat = None,
    block_length: o.BlockLength = None,
    randomness: o.Randomness,
    pairs: o.Pairs = 5,
    threads: o.Threads = 1,
    no_beside: o.NoBeside = False,
    memory: o.Memory = False,
    json_: Json = False,
    output: o.Document = None,
    quiet: o.Quiet = False,
    device: o.Device = "auto",
    dtype: o.Dtype = "auto",
    cuda_graphs: o.CudaGraphs = None,
) -> None:
    """Time a step and its parts, next to the hardware's minimum and other loops with the same weights and tokens.

    pardec bench decode tiny-dream --batch 1,8

    pardec bench decode tiny-llama -s sequential -s lookup --context 0,384 -o speed.json

    pardec bench decode tiny-llama -s sequential -s lookup --prompts prompts.jsonl

    pardec bench decode --shape llada-8b -s sequential@dual --context 448 --dtype bfloat16

    pardec bench decode --shape random-wide --memory
    """
    output_paths.check_file(output)
    if not model and not shape:
        raise SpecError("there is nothing to time", hint="name a model, or a shape, such as --shape random-100m")
    sizes = {name: _read_sizes(name, text) for name, text in (("batch", batch), ("new", new), ("context", context))}
    distribution = dict(randomness)
    for name in shape or ():
        config_of(name)
    for name in model or ():
        kind = preflight.check(name, sampler or (), distribution, {"device": device, "dtype": dtype})
        if kind is not None and kind.family == "masked" and block_length is not None:
            preflight.check_block(kind.name, block_length, min(sizes["new"]), kind.block)
    loading.check(device, dtype)
    texts = [item.prompt for item in read_file(prompts)] if prompts else []

    # Imported here since these import torch, which --help and a misspelt name do not need.
    import torch

    import pardec

    from ..bench import decode as timing
    from ..bench import report
    from ..bench.memory import sweep
    from ..bench.shapes import shaped

    torch.set_num_threads(threads)
    graphs = "auto" if cuda_graphs is None else cuda_graphs
    rows: list[dict[str, Any]] = []
    columns = report.MEMORY if memory else report.DECODE
    for name, published in [*((name, True) for name in model or ()), *((name, False) for name in shape or ())]:
        make: Callable[..., pardec.Model] = pardec.load if published else shaped
        loaded = make(name, device=device, dtype=dtype, cuda_graphs=graphs)
        say(repr(loaded), quiet=quiet)
        if chat_template.worth_saying(loaded, chat):
            applied = chat_template.applies(loaded, chat)
            say(chat_template.sentence(loaded.name, applied=applied), quiet=quiet)
        if memory:
            measurements = sweep(loaded)
        else:
            measurements = timing.bench(
                loaded,
                sampler or (),
                batches=sizes["batch"],
                contexts=sizes["context"],
                new=sizes["new"],
                prompts=texts,
                chat=chat,
                block_length=block_length,
                distribution=distribution,
                pairs=pairs,
                beside=not no_beside,
            )
        for row in measurements:
            rows.append(row)
            say(report.line(columns, row), quiet=quiet or sys.stdout.isatty())
    settings = {"pairs": pairs, "threads": threads, "block_length": block_length, "dtype": dtype, "device": device}
    settings |= {"cuda_graphs": graphs, **distribution}
    _output(report.document(sys.argv[1:], rows, settings), columns, json_, output, quiet)


@bench.command()
@o.command
def kernels(
    json_: Json = False,
    output: o.Document = None,
    threads: o.Threads = 1,
    quiet: o.Quiet = False,
    device: o.Device = "auto",
    dtype: o.Dtype = "auto",
) -> None:
    """Time each kernel in PyTorch, Triton and C, next to the time that moving its bytes takes."""
    output_paths.check_file(output)
    loading.check(device, dtype)

    import torch

    from pardec.models.parallel.placement import choose_device, choose_dtype

    from ..bench import kernels as timing
    from ..bench import report

    torch.set_num_threads(threads)
    torch_device, _ = choose_device(device)
    kind, _ = choose_dtype(dtype, torch_device, torch.bfloat16)
    if torch_device.type != "cuda":
        say(f"Triton's kernels are not timed on {torch_device}: they need CUDA", quiet=quiet)
    rows = list(timing.bench(torch_device, kind))
    settings = {"threads": threads, "dtype": str(kind).removeprefix("torch."), "device": str(torch_device)}
    _output(report.document(sys.argv[1:], rows, settings), report.KERNELS, json_, output, quiet)


def _output(data: dict[str, Any], columns: Sequence[Any], json_: bool, output: Path | None, quiet: bool) -> None:
    """Prints the data as JSON, as a table on a terminal, or as Markdown, and writes the file."""
    from ..bench import report

    if output is not None:
        report.write(data, output)
        say(f"wrote {output}", quiet=quiet)
    rows = data["rows"]
    print_table(json_, lambda: data, lambda: report.render_table(columns, rows), lambda: report.markdown(columns, rows))


def _read_sizes(name: str, text: str) -> list[int]:
    """Whole numbers separated by commas, at least 1 except for contexts."""
    least = 0 if name == "context" else 1
    message = f"--{name} takes whole numbers from {least} to {MAX_INT_PARAM}, separated by commas, got {text!r}"
    sizes = integers(text, message, f"--{name} 1,8")
    if min(sizes) < least or max(sizes) > MAX_INT_PARAM:
        raise SpecError(message, hint=f"--{name} 1,8")
    return sizes
