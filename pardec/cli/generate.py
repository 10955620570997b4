"""`pardec generate`: decodes prompts with any sampler."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import typer

from pardec.models.errors import SpecError

from ..executors import check_name
from ..executors.base import Local
from ..io import output_paths
from ..io.prompt_files import GENERATED, line_settings
from ..requests import line_calls, preflight
from ..requests.settings import ignored_arguments, repeat_each
from . import inputs
from . import options as o
from .common import Json, dump, say
from .wording import as_options


@o.command
def generate(
    model: o.ModelName,
    *,
    prompt: o.Prompt = None,
    prompts: o.Prompts = None,
    output: o.Output = None,
    overwrite: o.Overwrite = False,
    in_order: o.InOrder = False,
    chat: o.Chat = None,
    stream: o.Stream = False,
    json_: Json = False,
    logprobs: o.Logprobs = None,
    quiet: o.Quiet = False,
    sampling: o.TextSampling,
    stop: o.Stop = None,
    allowed: o.Allowed = None,
    response_format: o.ResponseFormat = None,
    num_return_sequences: o.ReturnSequences = None,
    seed: o.Seed = 0,
    batch_size: o.BatchSize = 8,
    executor: o.Executor = "local",
    workers: o.Workers = None,
    loading: o.CheckpointLoading,
    tp: o.TensorParallel = False,
) -> None:
    """Decode prompts from -p, a file or stdin, and print the text.

    pardec generate tiny-dream -p "Tom has 8 cups. He loses 3. How many cups does Tom have now?" --stream

    pardec generate GSAI-ML/LLaDA-8B-Instruct -p "What is a fjord?" -n 256 -s threshold:tau=0.9@dual

    pardec generate tiny-dream --prompts problems.jsonl -o rows.jsonl --batch-size 16

    torchrun --nproc-per-node 2 -m pardec generate MODEL -p "What is a fjord?" --tp

    torchrun --nproc-per-node 8 -m pardec generate MODEL --prompts problems.jsonl -o rows.jsonl --executor torchrun
    """
    if tp:
        check_tensor_parallel(executor, output, prompts, has_prompt=bool(prompt))
    preflight.check_kind(model, draws=False)
    items = inputs.read(prompt or [], prompts, GENERATED)
    to_rows = output is not None and output.suffix == ".jsonl"
    count = len(items) * (num_return_sequences or 1)
    if output is not None and not to_rows and count > batch_size:
        raise SpecError(
            f"{count} prompts do not fit in {output}, which holds one batch of {batch_size}",
            hint="name a .jsonl file, or raise --batch-size",
        )
    if in_order and (not to_rows or executor != "local"):
        raise SpecError("--in-order is for -o FILE.jsonl and --executor local", hint="leave --in-order out")
    if overwrite and not to_rows:
        raise SpecError("--overwrite is for -o FILE.jsonl; any other result is replaced", hint="leave --overwrite out")
    if logprobs is not None and output is None and not json_:
        raise SpecError("--logprobs is for -o and --json; printed text shows none", hint="add --json, or -o FILE.jsonl")
    if to_rows:
        output_paths.check_file(output, append=True)
    else:
        output_paths.check_result(output)
    own = [line_settings(item, f"{prompts or 'standard input'}, line {item.line}") for item in items]
    if output is not None and not to_rows and any(own):
        raise SpecError(f"{output} saves one request, and some lines have other settings", hint="name a .jsonl file")
    optional = {
        "stop": inputs.read_stop(stop),
        "num_return_sequences": num_return_sequences,
        "allowed": inputs.read_allowed(allowed),
        "logprobs": logprobs,
        "response_format": inputs.read_response_format(response_format),
    }
    arguments: Any = {"seed": seed, **sampling}
    arguments |= {name: value for name, value in optional.items() if value is not None}
    load_arguments = {**o.to_arguments(loading), "tp": tp, "images": False}
    kind = preflight.check(model, [sampling.get("sampler")], arguments, load_arguments, draws=False)
    preflight.check_texts(item.prompt for item in items)

    check_name(executor)

    settings = preflight.check_parts(kind, arguments)

    # Imported here since these import torch, which --help and a misspelt name do not need.
    from ..executors import executor as create_executor
    from . import dispatch
    from .batches import Batches, checkpoint_of

    runner = TensorParallel() if tp else create_executor(executor, workers=workers)
    if executor != "local":
        dispatch.check(executor, output, prompts, has_prompt=bool(prompt), stream=stream)
    quiet = quiet or not runner.leads
    loaded = dispatch.load_model(runner, model, load_arguments, quiet=quiet)
    if loaded.imaging is not None:
        raise SpecError(f"{loaded.name} is an image model", hint=f'try "pardec image {model} -o out.png"')
    items = inputs.as_messages(items, loaded, chat=chat, quiet=quiet)
    call = line_calls.prepare(loaded, items, arguments, str(prompts or "standard input"))
    ignored = ignored_arguments(arguments, call.settings)
    if ignored is not None:
        say(f"warning: {as_options(ignored, o.OPTIONS)}", quiet=quiet)
    repeated = repeat_each(items, settings.num_return_sequences)
    run = Batches(loaded, call, repeated, stream=stream, quiet=quiet, in_order=in_order)
    if to_rows and output is not None:
        checkpoint = checkpoint_of(model, load_arguments)
        dispatch.open_rows(run, runner, output, overwrite=overwrite, checkpoint=checkpoint)
    try:
        if executor == "local":
            run.decode(batch_size, show=not to_rows and not json_ and runner.leads)
        else:
            job = dispatch.Generation(model, load_arguments, items, arguments, batch_size)
            dispatch.decode(run, runner, job)
    except KeyboardInterrupt:
        say(run.interrupt_message(), quiet=not runner.leads)
        raise typer.Exit(130) from None
    if output is not None and not to_rows and runner.leads:
        run.result().save(output)
        say(f"wrote {output}", quiet=quiet)
    if json_ and runner.leads:
        dump(run.document())
    say(run.summary(), quiet=quiet)
    run.warn()


class TensorParallel(Local):
    """The executor of a process with a share of the model."""

    def __init__(self) -> None:
        super().__init__()
        self.leads = os.environ.get("RANK", "0") == "0"


def check_tensor_parallel(executor: str, output: Path | None, prompts: Path | None, *, has_prompt: bool) -> None:
    """Refuses another executor, prompts that only one process can read, and a .jsonl file."""
    if executor != "local":
        raise SpecError(
            f"--tp splits one model over the processes, and the {executor} executor gives each a copy",
            hint="leave --tp or --executor out",
        )
    if output is not None and output.suffix == ".jsonl":
        raise SpecError(
            f"--tp decodes all prompts in one run, and {output} would resume an earlier one",
            hint="name a folder, or use --json > rows.json",
        )
    if not has_prompt and (prompts is None or str(prompts) == "-"):
        raise SpecError("only one process of torchrun can read standard input", hint="name a file with --prompts")
