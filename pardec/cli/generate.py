"""`pardec generate`: prompts in, text out, by any sampler."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pardec.cli import inputs
from pardec.cli.common import Debug, Json, dump, say
from pardec.models.errors import SpecError

if TYPE_CHECKING:
    from pardec.api import Model
    from pardec.cli.rows import RowsFile
    from pardec.requests import Call
    from pardec.samplers.events import Event

SHAPE, RUN, OUT = "Sampling", "Model and machine", "Input and output"


def generate(
    model: Annotated[str, typer.Argument(help="An embedded model, a folder, or a hub id.")],
    prompt: Annotated[list[str] | None, typer.Option("--prompt", "-p", help="A prompt; may be repeated.", rich_help_panel=OUT)] = None,
    prompts: Annotated[Path | None, typer.Option(help="Prompts, one a line: .jsonl or text; - is stdin.", rich_help_panel=OUT)] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="FILE.jsonl: append rows, go on after a stop. Else: save for pardec view.", rich_help_panel=OUT),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Start FILE.jsonl over.", rich_help_panel=OUT)] = False,
    chat: Annotated[bool, typer.Option("--chat", help="Put prompts into the chat template.", rich_help_panel=OUT)] = False,
    stream: Annotated[bool, typer.Option("--stream", help="Show the canvas filling.", rich_help_panel=OUT)] = False,
    json_: Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Nothing but results and errors.", rich_help_panel=OUT)] = False,
    sampler: Annotated[str | None, typer.Option("--sampler", "-s", help='A spec, "threshold:tau=0.9@dual", or preset:NAME.', rich_help_panel=SHAPE)] = None,
    max_new_tokens: Annotated[int | None, typer.Option("--max-new-tokens", "-n", help="Tokens to fill after the prompt, 64 if not given.", rich_help_panel=SHAPE)] = None,
    block_length: Annotated[int | None, typer.Option(help="Tokens of a block, at most 32 if not given.", rich_help_panel=SHAPE)] = None,
    temperature: Annotated[float | None, typer.Option(help="0 takes the likeliest token.", rich_help_panel=SHAPE)] = None,
    top_k: Annotated[int | None, typer.Option(help="Draw from the k likeliest tokens.", rich_help_panel=SHAPE)] = None,
    top_p: Annotated[float | None, typer.Option(help="Draw from the likeliest tokens holding p.", rich_help_panel=SHAPE)] = None,
    cfg: Annotated[float | None, typer.Option(help="Guidance; 1 is the model alone.", rich_help_panel=SHAPE)] = None,
    seed: Annotated[int, typer.Option(help="Prompt i draws from a seed of this and i.", rich_help_panel=SHAPE)] = 0,
    batch_size: Annotated[int, typer.Option(help="Prompts decoded at once.", min=1, rich_help_panel=RUN)] = 8,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.", rich_help_panel=RUN)] = "auto",
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16, float16.", rich_help_panel=RUN)] = "auto",
    device_map: Annotated[str | None, typer.Option(help="auto spreads layers over devices.", rich_help_panel=RUN)] = None,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit on the hub.", rich_help_panel=RUN)] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Use what is on the disk.", rich_help_panel=RUN)] = False,
    debug: Debug = False,
) -> None:  # fmt: skip
    """Decode prompts from -p, a file or stdin; text goes to stdout.

    pardec generate tiny-dream -p "Tom has 3 cups. He buys 4 more. How many cups does Tom have now?" --stream

    pardec generate GSAI-ML/LLaDA-8B-Instruct --chat -p "..." -n 256 -s threshold:tau=0.9@dual

    pardec generate tiny-dream --prompts problems.jsonl -o rows.jsonl --batch-size 16
    """
    items = inputs.read(prompt or [], prompts, chat=chat)
    given = {
        "sampler": sampler,
        "max_new_tokens": max_new_tokens,
        "block_length": block_length,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "cfg": cfg,
        "seed": seed,
    }
    arguments: Any = {name: value for name, value in given.items() if value is not None}
    resumable = output is not None and output.suffix == ".jsonl"
    if output is not None and not resumable and len(items) > batch_size:
        raise SpecError(
            f"{len(items)} prompts do not fit one batch of {batch_size}, which is what {output} would hold",
            hint="name a .jsonl file, or raise --batch-size",
        )

    from pardec.api import load
    from pardec.samplers.registry import resolve
    from pardec.settings import Settings

    resolve(Settings.of(arguments).sampler)  # a misspelt sampler is refused before any weights are read
    loaded = load(
        model, device=device, dtype=dtype, device_map=device_map, revision=revision, offline=offline
    )  # fmt: skip
    say(loaded.language_model.describe(), quiet=quiet)
    call = loaded.prepare([item.prompt for item in items], **arguments)
    run = _Run(loaded, call, items, stream=stream and not quiet, quiet=quiet)
    if resumable and output is not None:
        run.open(output, overwrite=overwrite)
    elif not json_:
        run.show = print
    try:
        run.decode(batch_size)
    except KeyboardInterrupt:
        _interrupted(run, output)
        raise typer.Exit(130) from None
    if output is not None and not resumable:
        run.result().save(output)
        say(f"wrote {output}", quiet=quiet)
    if json_:
        dump(run.document())
    run.summary()


class _Run:
    """All prompts of one command, batch by batch."""

    def __init__(self, model: Model, call: Call, items: list[inputs.Item], *, stream: bool, quiet: bool) -> None:
        self.model, self.call, self.items, self.stream, self.quiet = model, call, items, stream, quiet
        self.rows: dict[int, dict[str, Any]] = {}
        self.file: RowsFile | None = None
        self.keys: list[str] = []
        self.show: Callable[[str], None] | None = None
        self.seconds, self.made, self.last = 0.0, 0, None
        self.told_at = time.monotonic()

    def open(self, output: Path, *, overwrite: bool) -> None:
        """Finds the rows that are there already."""
        from pardec.cli.rows import RowsFile, key_of

        settings = {
            "model": self.model.name,
            "spec": str(self.call.sampler.spec),
            **self.call.settings,
            "dtype": str(self.model.language_model.dtype).removeprefix("torch."),
        }
        self.file = RowsFile(output, settings, overwrite=overwrite)
        self.keys = [
            key_of(settings, item.prompt, seed) for item, seed in zip(self.items, self.call.seeds, strict=True)
        ]
        self.rows = {at: self.file.rows[key] for at, key in enumerate(self.keys) if key in self.file.rows}
        if self.rows:
            say(f"{len(self.rows)} of {len(self.items)} rows are in {output} already", quiet=self.quiet)

    def decode(self, batch_size: int) -> None:
        """Makes the rows that are missing."""
        todo = [at for at in range(len(self.items)) if at not in self.rows]
        for start in range(0, len(todo), batch_size):
            batch = todo[start : start + batch_size]
            self._batch(batch)
            if self.show is not None:
                for at in batch:
                    text = self.rows[at]["text"]
                    self.show(" ".join(map(str, self.rows[at]["tokens"])) if text is None else text)
            self._progress()

    def _batch(self, batch: list[int]) -> None:
        from pardec.result import before_end
        from pardec.samplers.events import Finished, RowFinished

        part = self.call.take(batch)
        started = time.perf_counter()
        with self._watch() as watch:
            for event in self.model.run(part):
                watch(event)
                if isinstance(event, RowFinished):
                    at = batch[event.row]
                    self._finish(at, self.model.row(part, event))
                    self.made += before_end(self.rows[at]["tokens"], part.request.stop_ids)
                elif isinstance(event, Finished):
                    self.last = (part, event, time.perf_counter() - started)
        self.seconds += time.perf_counter() - started

    def _finish(self, at: int, row: dict[str, Any]) -> None:
        self.rows[at] = {"id": self.items[at].id, "prompt": self.items[at].prompt, **row}
        if self.file is not None:
            self.file.append(self.keys[at], self.rows[at])
