"""The options of the commands, with their panels in --help, and groups of options that commands share."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any, ClassVar, get_type_hints

import typer
from typer.core import TyperCommand

from pardec.models.errors import SpecError

from ..requests.argument import Takes
from ..requests.settings import ARGUMENTS
from .common import Debug


def _option(panel: str, text: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=panel, **more)


def _declared(name: str, panel: str = "Sampling", *default: Any, images: bool = False, text: str = "") -> Any:
    """The option of an argument of `generate`; `text` replaces its help."""
    option = ARGUMENTS[name].option
    assert option is not None, "declared with one"
    text = text or (option.images if images and isinstance(option.images, str) else option.help)
    return typer.Option(*default, *option.flags, help=text, rich_help_panel=panel, **option.more)


IO, SHAPE, RUN = "Input and output", "Sampling", "Model and machine"
OPTIONS = {name: f"--{name.replace('_', '-')}" for name, each in ARGUMENTS.items() if each.option}  # by argument

ModelName = Annotated[
    str, typer.Argument(metavar="MODEL", help="An embedded model, a folder, a GGUF file, or a hub id.")
]

Prompt = Annotated[list[str] | None, _option(IO, "A prompt; may be repeated.", "--prompt", "-p")]
Prompts = Annotated[Path | None, _option(IO, "Prompts, .jsonl, .csv or text, one per line; - is stdin.", "--prompts")]
Output = Annotated[
    Path | None,
    _option(
        IO,
        "FILE.jsonl gets one row per prompt and resumes; any other name saves the result for pardec view.",
        "--output",
        "-o",
    ),
]
Overwrite = Annotated[bool, _option(IO, "Replace FILE.jsonl instead of resuming.", "--overwrite")]
InOrder = Annotated[
    bool,
    _option(IO, "FILE.jsonl gets rows in the order of the prompts; a row waits for those before it.", "--in-order"),
]
Chat = Annotated[
    bool | None,
    _option(
        IO, "Apply the chat template (the default if the model has one), or pass the text unchanged.", "--chat/--raw"
    ),
]
Stream = Annotated[bool, _option(IO, "Show decoding live; in a pipe, print text as it becomes final.", "--stream")]
Quiet = Annotated[bool, _option(IO, "Print only results and errors.", "--quiet")]

Sampler = Annotated[str | None, _declared("sampler")]
BlockLength = Annotated[int | None, _declared("block_length")]
Temperature = Annotated[float | None, _declared("temperature")]
Stop = Annotated[list[str] | None, _declared("stop")]
ReturnSequences = Annotated[int | None, _declared("num_return_sequences")]
ResponseFormat = Annotated[Path | None, _declared("response_format")]
Allowed = Annotated[Path | None, _declared("allowed")]
Logprobs = Annotated[int | None, _declared("logprobs", IO)]
Seed = Annotated[int, _declared("seed")]

BatchSize = Annotated[int, _option(RUN, "Prompts decoded at once.", min=1)]
Executor = Annotated[str, _option(RUN, "Where batches run: local, torchrun or ray; the last two need -o FILE.jsonl.")]
Workers = Annotated[int | None, _option(RUN, "Copies of the model, by default as many as fit.", min=1)]
Device = Annotated[str, _option(RUN, "The device: auto, cpu, cuda, cuda:1 or mps.")]
Dtype = Annotated[str, _option(RUN, "The type of the weights: auto, float32, bfloat16 or float16.")]
DeviceMap = Annotated[str | None, _option(RUN, "auto distributes the layers over devices.")]
Quantize = Annotated[str | None, _option(RUN, "int8, int4 or fp8: quantize the matrices; GPUs need the extra quant.")]
Packed = Annotated[
    bool | None,
    _option(RUN, "Keep the blocks of a GGUF file packed in memory, or dequantize them.", "--packed/--dense"),
]
Activations = Annotated[str | None, _option(RUN, "What packed weights multiply: float32, or int8, which is faster.")]
TensorParallel = Annotated[bool, _option(RUN, "Tensor parallelism under torchrun.", "--tp")]
CudaGraphs = Annotated[
    bool | None,
    _option(
        RUN, "Replay small forwards as CUDA graphs; by default where they can be.", "--cuda-graphs/--no-cuda-graphs"
    ),
]
Adapter = Annotated[
    str | None, _option(RUN, "A LoRA adapter in PEFT's layout, a folder or hub id, merged into the weights.")
]
Revision = Annotated[str | None, _option(RUN, "Branch, tag or commit on the hub.")]
MaskId = Annotated[int | None, _option(RUN, "The mask token id, if the checkpoint does not name it.")]
Block = Annotated[int | None, _option(RUN, "The block length of a block-causal checkpoint, if it does not name it.")]
Shift = Annotated[
    int | None,
    _option(RUN, "Offset of the output that predicts a token: 0 (LLaDA) or 1 (Dream); overrides the family's."),
]
Attention = Annotated[
    str | None,
    _option(
        RUN, "Attention: bidirectional, block-causal, windowed-causal, causal-prefix or causal; overrides the family's."
    ),
]
Offline = Annotated[bool, _option(RUN, "Use downloaded files only.", "--offline")]

# --- of `chat` ---

System = Annotated[str | None, _option(IO, "The system message.")]
TurnSeed = Annotated[int, _option(SHAPE, "Random seed; turn i uses a seed derived from it and i.", "--seed")]

# --- of `image` ---

Captions = Annotated[list[str] | None, _option(IO, "A caption; may be repeated.", "--prompt", "-p")]
CaptionFile = Annotated[Path | None, _option(IO, "Captions, one per line, .jsonl or text; - is stdin.", "--prompts")]
Classes = Annotated[
    list[int] | None, _option(IO, "A class; may be repeated; -1 is none (MAR, VAR).", "--class", "-c", "--label")
]
NumImages = Annotated[int | None, _option(IO, "Images per caption or class, by default as many as fill --grid.", min=1)]
OutputImage = Annotated[
    Path | None, _option(IO, "FILE.png, .jpg or .webp for all images, side by side.", "--output", "-o")
]
GifPath = Annotated[
    Path | None, _option(IO, "FILE.gif for an animation of the images, forward by forward.", metavar="FILE")
]
Each = Annotated[Path | None, _option(IO, "A folder with one file for each image.", metavar="DIR")]
SavePath = Annotated[Path | None, _option(IO, "Save the run for pardec view.", metavar="RESULT")]
Scale = Annotated[int, _option(IO, "Enlarge: each pixel becomes N by N pixels.", metavar="N", min=1, max=64)]
Watch = Annotated[bool, _option(IO, "Show the images after every step; needs no output.", "--watch")]
Size = Annotated[str | None, _option(IO, "Draw at this size, one that the model has.", metavar="HxW")]
Grid = Annotated[str | None, _option(IO, "Layout of FILE.png, by default square.", metavar="ROWSxCOLUMNS")]
ImageSeed = Annotated[
    int | None, _option(SHAPE, "Random seed, by default 0; image i uses a seed derived from it and i.")
]
ImageSeeds = Annotated[str | None, _option(SHAPE, "One seed per image, as saved files and --json show them: 5,12.")]
ImageBatch = Annotated[int, _option(RUN, "Images decoded at once.", "--batch-size", min=1)]
Decoder = Annotated[str | None, _option(RUN, "The image tokenizer or autoencoder, if it is not in the model's folder.")]
TextEncoder = Annotated[str | None, _option(RUN, "The text encoder of captions, a folder or hub id.")]

# --- of `compare` ---

Tasks = Annotated[list[str] | None, _option(IO, "A task or a group of tasks; may be repeated.", "--task", "-t")]
TaskPrompts = Annotated[Path | None, _option(IO, "Prompts, .jsonl or .csv, optionally with answers.", "--prompts")]
Scorer = Annotated[str | None, _option(IO, "How answers to --prompts are scored: exact, number or file.py:function.")]
Run = Annotated[Path | None, _option(IO, "The folder for rows and report.", "--out", "-o", metavar="RUN")]
Resume = Annotated[bool, _option(IO, "Resume the run in --out.", "--resume")]
RetryFailed = Annotated[bool, _option(IO, "Try failed rows again.", "--retry-failed")]
Samplers = Annotated[
    list[str] | None, _option(SHAPE, "A spec or preset:NAME to compare; may be repeated.", "--sampler", "-s")
]
Limit = Annotated[int, _option(IO, "Problems of each task.", min=1)]
Seeds = Annotated[str, _option(SHAPE, "Seeds, such as 0,1,2; each problem is decoded once per seed.")]
Split = Annotated[str, _option(IO, "Which problems of a task: heldout or train.")]
ProblemSeed = Annotated[int, _option(IO, "Seed that selects the problems.")]
Sweep = Annotated[
    bool,
    _option(
        IO,
        "Decode each sampler, and threshold and fixed, at several values of its quality parameter, to draw curves.",
    ),
]
Points = Annotated[int | None, _option(IO, "With --sweep: the most values tried per sampler.", min=2)]
Replays = Annotated[int, _option(IO, "Problems of each task whose decoding the report replays.", min=0)]
CostRatio = Annotated[
    float | None,
    _option(
        IO,
        "Cost of a drafter's forward, in forwards of the model, for the simulated speed-up; by default by size.",
    ),
]
Latex = Annotated[Path | None, _option(IO, "Write the table for LaTeX, with booktabs.", metavar="FILE")]
Figure = Annotated[Path | None, _option(IO, "Draw accuracy against forwards into a .svg or .pdf file.", metavar="FILE")]
NoReferences = Annotated[
    bool,
    _option(
        IO, "Skip sequential and oracle; the table then lacks agreement and the fewest forwards.", "--no-references"
    ),
]
ComparedBy = Annotated[str, _option(RUN, "Where batches run: local, torchrun or ray.", "--executor")]

# --- of `bench` ---

Timed = Annotated[list[str] | None, typer.Argument(metavar="[MODEL]...", help="Embedded models, folders, hub ids.")]
Shapes = Annotated[
    list[str] | None,
    _option(
        IO,
        "A published architecture with random weights: llada-8b, dream-7b, qwen3-8b, llamagen-xl, mar-l, random-2m, "
        "random-100m, random-100m-ar or random-wide; may be repeated.",
        "--shape",
    ),
]
Document = Annotated[Path | None, _option(IO, "The file for the JSON document.", "--output", "-o", metavar="FILE")]
Batches = Annotated[str, _option(SHAPE, "Batch sizes, separated by commas.", "--batch")]
NewTokens = Annotated[str, _option(SHAPE, "Tokens to generate, separated by commas.", "--new")]
Contexts = Annotated[
    str, _option(SHAPE, "Prompt lengths in tokens, separated by commas; 0 is a short question.", "--context")
]
TimedPrompts = Annotated[
    Path | None, _option(IO, "Decode these prompts, .jsonl or .txt, up to their end tokens.", "--prompts")
]
Pairs = Annotated[int, _option(RUN, "How often each loop is timed, alternating with the others.", min=1)]
Threads = Annotated[int, _option(RUN, "CPU threads.", min=1)]
NoBeside = Annotated[bool, _option(RUN, "Do not time the loops of other libraries.", "--no-beside")]
Memory = Annotated[bool, _option(RUN, "Measure how memory grows with the size of a request, not time.", "--memory")]

# --- of `serve` ---

Host = Annotated[str, _option(RUN, "The address to listen on; 0.0.0.0 is all of them.", "--host")]
Port = Annotated[int, _option(RUN, "The port to listen on; 0 takes a free one.", "--port", min=0, max=65535)]
ServedName = Annotated[
    str | None, _option(IO, "A second name by which clients may request the model.", "--name", metavar="NAME")
]
ApiKey = Annotated[
    str | None,
    _option(RUN, "A key that clients have to send.", "--api-key", envvar="PARDEC_API_KEY", show_envvar=True),
]
AllowOrigin = Annotated[
    list[str] | None,
    _option(RUN, "An origin whose pages may use the server (CORS), such as https://my.app; * is any; may be repeated."),
]
ReadingTime = Annotated[float, _option(RUN, "Most seconds for parsing a request's text and schema.", min=0.1)]
ReceivingTime = Annotated[float, _option(RUN, "Most seconds for receiving a request.", min=0.1)]
ServedRows = Annotated[int, _option(RUN, "Rows decoded at once.", "--batch-size", min=1)]
Queue = Annotated[int, _option(RUN, "Most rows that wait for a slot; further requests get status 503.", min=0)]
MaxRows = Annotated[int, _option(RUN, "Most rows of one request: prompts times n.", min=1)]
MaxLength = Annotated[
    int | None, _option(RUN, "Most tokens of a row, prompt and answer together; by default the model's limit.", min=1)
]
MaxBody = Annotated[int, _option(RUN, "Largest body of a request, in KiB.", min=1)]
TimeLimit = Annotated[float, _option(RUN, "Most seconds from a request to the end of its answer.", "--timeout", min=0)]
Grace = Annotated[float, _option(RUN, "Seconds that running requests get to finish when the server stops.", min=0)]
PrefixMiB = Annotated[
    int,
    _option(
        RUN,
        "MiB for keys and values of prompts, reused by later prompts with the same beginning; 0 is off.",
        "--prefix-cache",
        min=0,
    ),
]

# --- groups ---


class Given(dict[str, Any]):
    """The given options of a group, by argument of `generate`; omitted options keep a preset's values."""

    names: tuple[str, ...]
    images = False
    texts: ClassVar[dict[str, str]] = {}  # help where it is not that of `generate`


class Randomness(Given):
    """How tokens are sampled from the model's distribution."""

    names = ("temperature", "top_k", "top_p")


class Tuned(Given):
    """Arguments of `tune`."""

    names = (*Randomness.names, "max_new_tokens", "cfg")


class CheckedSampling(Given):
    """Arguments of `check`."""

    names = (*Randomness.names, "min_p", "max_new_tokens", "block_length", "cfg")


class Compared(Given):
    """Arguments of `compare`."""

    names = tuple(name for name, each in ARGUMENTS.items() if each.option and each.compared)


class TextSampling(Given):
    """Arguments of `generate` for text."""

    names = tuple(
        name for name, each in ARGUMENTS.items() if each.option and not each.option.alone and each.takes & Takes.TEXT
    )


class ServedSampling(TextSampling):
    """Arguments of `generate` for requests that leave them out."""

    texts: ClassVar[dict[str, str]] = {
        "max_new_tokens": "Most tokens of an answer, by default 1024; of masked models the canvas, by default 64."
    }


class ImageSampling(Given):
    """Arguments of `generate` for images."""

    names = tuple(name for name, each in ARGUMENTS.items() if each.option and each.option.images)
    images = True


@dataclass
class Problems:
    """Where the problems of a run come from, and where its results go."""

    prompts: TaskPrompts = None
    scorer: Scorer = None
    out: Run = None
    resume: Resume = False


@dataclass
class Loading:
    """Arguments of `load`."""

    device: Device = "auto"
    dtype: Dtype = "auto"
    device_map: DeviceMap = None
    quantize: Quantize = None
    packed: Packed = None
    activations: Activations = None
    cuda_graphs: CudaGraphs = None
    adapter: Adapter = None
    revision: Revision = None
    offline: Offline = False


@dataclass
class TextLoading(Loading):
    """Arguments of `load` for models of text."""

    mask_id: MaskId = None


@dataclass
class CheckpointLoading(TextLoading):
    """Arguments of `load` for models of text, with those that override a checkpoint's own settings."""

    block: Block = None
    shift: Shift = None
    attention: Attention = None


@dataclass
class ImageLoading(Loading):
    """Arguments of `load` for models of images."""

    decoder: Decoder = None
    text_encoder: TextEncoder = None


@dataclass
class AnyLoading(ImageLoading, TextLoading):
    """Arguments of `load`."""


@dataclass
class ServedLoading(ImageLoading, CheckpointLoading):
    """Arguments of `load`, with those that override a checkpoint's own settings."""


def to_arguments(group: Any) -> dict[str, Any]:
    """The options of a dataclass as keyword arguments, without those that are None."""
    return {field.name: value for field in fields(group) if (value := getattr(group, field.name)) is not None}


class OneSampler(TyperCommand):
    """A command that takes a single --sampler and refuses a second one."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parses the arguments. Raises SpecError for a second --sampler, of which click would take the last."""
        _, _, order = self.make_parser(ctx).parse_args(list(args))
        if sum(option.name == "sampler" for option in order) > 1:
            raise SpecError(
                f"--sampler is given more than once, and {ctx.command_path} takes one",
                hint='join methods with "+", such as -s threshold+eos; "pardec compare" takes several samplers',
            )
        return super().parse_args(ctx, args)


def command(function: Callable[..., None]) -> Callable[..., None]:
    """A command whose parameters may be groups: typer gets their fields as options, and --debug at the end."""
    groups: dict[str, Callable[[dict[str, Any]], Any]] = {}
    parameters: list[inspect.Parameter] = []

    def add(name: str, annotation: Any, default: Any) -> None:
        parameters.append(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        )

    hints = get_type_hints(function, include_extras=True)
    for name, parameter in inspect.signature(function).parameters.items():
        group = hints[name]
        if isinstance(group, type) and issubclass(group, Given):
            groups[name] = partial(_given, group)
            for each in group.names:
                kind = ARGUMENTS[each].number or str
                add(
                    each, kind | None, _declared(each, SHAPE, None, images=group.images, text=group.texts.get(each, ""))
                )
        elif isinstance(group, type) and is_dataclass(group):
            groups[name] = partial(_filled, group)
            types = get_type_hints(group, include_extras=True)
            for field in fields(group):
                add(field.name, types[field.name], field.default)
        else:
            add(name, group, parameter.default)
    add("debug", Debug, False)

    @wraps(function)
    def expanded(*, debug: bool = False, **values: Any) -> None:
        filled = {name: group(values) for name, group in groups.items()}
        try:
            function(**filled, **values)
            sys.stdout.flush()
        except KeyboardInterrupt:  # which typer answers with an exit code and no word
            raise typer.Abort from None
        except BrokenPipeError:  # the reader has what it wants: typer would call that a failure
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the interpreter's last flush

    expanded.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    expanded.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return expanded


def _given(group: type[Given], values: dict[str, Any]) -> Given:
    """A group of arguments, taken out of a command's values."""
    taken = {name: values.pop(name) for name in group.names}
    return group({name: value for name, value in taken.items() if value is not None})


def _filled(group: type, values: dict[str, Any]) -> Any:
    """A dataclass, taken out of a command's values."""
    return group(**{field.name: values.pop(field.name) for field in fields(group)})
