"""The options of the commands that decode, in the panels that --help shows, and groups of those that several share."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from .common import Debug


def _option(panel: str, text: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=panel, **more)


IO, SHAPE, RUN = "Input and output", "Sampling", "Model and machine"

ModelName = Annotated[
    str, typer.Argument(metavar="MODEL", help="An embedded model, a folder, a GGUF file, or a hub id.")
]

Prompt = Annotated[list[str] | None, _option(IO, "A prompt; may be repeated.", "--prompt", "-p")]
Prompts = Annotated[Path | None, _option(IO, "Prompts, one a line, .jsonl or text; - is stdin.", "--prompts")]
Output = Annotated[
    Path | None, _option(IO, "FILE.jsonl takes rows and resumes; else saved for pardec view.", "--output", "-o")
]
Overwrite = Annotated[bool, _option(IO, "Start FILE.jsonl over.", "--overwrite")]
Chat = Annotated[
    bool | None,
    _option(
        IO, "Text is a user's turn, the default where there is a chat template; or the text itself.", "--chat/--raw"
    ),
]
Stream = Annotated[bool, _option(IO, "Show the canvas filling; in a pipe, print text as it settles.", "--stream")]
Quiet = Annotated[bool, _option(IO, "Say nothing but results and errors.", "--quiet")]

Sampler = Annotated[str | None, _option(SHAPE, "A spec or preset:NAME; see pardec list.", "--sampler", "-s")]
MaxNewTokens = Annotated[int | None, _option(SHAPE, "Tokens to fill, 64 if not given.", "--max-new-tokens", "-n")]
BlockLength = Annotated[int | None, _option(SHAPE, "Tokens of a block, 32 or fewer if not given.")]
Temperature = Annotated[float | None, _option(SHAPE, "0, the default, takes the likeliest token.")]
TopK = Annotated[int | None, _option(SHAPE, "Draw from the k likeliest tokens.")]
TopP = Annotated[float | None, _option(SHAPE, "Draw from the likeliest tokens that hold p.")]
MinP = Annotated[float | None, _option(SHAPE, "Leave out what is less likely than p times the likeliest.")]
RepetitionPenalty = Annotated[float | None, _option(SHAPE, "Above 1, tokens that stand already are less likely.")]
MinNewTokens = Annotated[int | None, _option(SHAPE, "So many tokens before an end token may come.")]
Stop = Annotated[
    list[str] | None, _option(SHAPE, r"End rows before this text, \n a line break; may be repeated.", "--stop")
]
ReturnSequences = Annotated[int | None, _option(SHAPE, "Answers to each prompt; they need a temperature.", min=1)]
Cfg = Annotated[float | None, _option(SHAPE, "Guidance; 1 is the model alone.")]
Allowed = Annotated[Path | None, _option(SHAPE, "JSON: the tokens that may stand at each position.", "--allowed")]
Seed = Annotated[int, _option(SHAPE, "Prompt i draws from a seed of this and i.")]

BatchSize = Annotated[int, _option(RUN, "Prompts decoded at once.", min=1)]
Executor = Annotated[str, _option(RUN, "local, torchrun or ray: who decodes; all but local write FILE.jsonl.")]
Workers = Annotated[int | None, _option(RUN, "Copies of the model; all there is room for if not given.", min=1)]
Device = Annotated[str, _option(RUN, "auto, cpu, cuda, cuda:1 or mps.")]
Dtype = Annotated[str, _option(RUN, "auto, float32, bfloat16 or float16.")]
DeviceMap = Annotated[str | None, _option(RUN, "auto spreads the layers over devices.")]
Quantize = Annotated[str | None, _option(RUN, "int8, int4 or fp8: matrices in fewer bits, by the extra quant.")]
TensorParallel = Annotated[bool, _option(RUN, "Under torchrun: each process holds a share of each layer.", "--tp")]
CudaGraphs = Annotated[bool, _option(RUN, "Record small forwards and run them again.", "--cuda-graphs")]
Revision = Annotated[str | None, _option(RUN, "Branch, tag or commit on the hub.")]
MaskId = Annotated[int | None, _option(RUN, "The mask token, where the checkpoint does not name it.")]
Offline = Annotated[bool, _option(RUN, "Use what is on the disk already.", "--offline")]

# --- of `chat` ---

System = Annotated[str | None, _option(IO, "What stands before the first turn, as the system's message.")]
TurnSeed = Annotated[int, _option(SHAPE, "Turn i draws from a seed of this and i.", "--seed")]

# --- of `image` ---

Captions = Annotated[list[str] | None, _option(IO, "A caption; may be repeated.", "--prompt", "-p")]
CaptionFile = Annotated[Path | None, _option(IO, "Captions, one a line, .jsonl or text; - is stdin.", "--prompts")]
Classes = Annotated[list[int] | None, _option(IO, "A class; may be repeated; of vectors, -1 is none.", "--class", "-c")]
NumImages = Annotated[int | None, _option(IO, "Images of each; as many as fill --grid if not given.", min=1)]
OutputImage = Annotated[Path | None, _option(IO, "FILE.png takes all images, side by side.", "--output", "-o")]
Each = Annotated[Path | None, _option(IO, "A folder that takes them one by one.", metavar="DIR")]
SavedResult = Annotated[Path | None, _option(IO, "Save the run for pardec view.", metavar="RESULT")]
Scale = Annotated[int, _option(IO, "Times as large: each pixel becomes a square of N.", metavar="N", min=1, max=64)]
NegativePrompt = Annotated[str | None, _option(SHAPE, "A caption that guidance leads away from.")]
Grid = Annotated[str | None, _option(IO, "How FILE.png is laid out; squarely if not given.", metavar="ROWSxCOLUMNS")]
ImageCfg = Annotated[float | None, _option(SHAPE, "Guidance, 1 is none; the model's own if not given.")]
CfgInterval = Annotated[int | None, _option(SHAPE, "Guide the first N + 2 tokens only.", metavar="N")]
ImageTemperature = Annotated[float | None, _option(SHAPE, "0 takes the likeliest; the model's own if not given.")]
ImageSeed = Annotated[int | None, _option(SHAPE, "Image i draws from a seed of this, 0, and i.")]
ImageSeeds = Annotated[str | None, _option(SHAPE, "Each image's own, as files and --json tell: 5,12.")]
ImageBatch = Annotated[int, _option(RUN, "Images decoded at once.", "--batch-size", min=1)]
Decoder = Annotated[str | None, _option(RUN, "The image tokenizer or autoencoder, if not beside the weights.")]
TextEncoder = Annotated[str | None, _option(RUN, "What reads captions, a folder or hub id.")]

# --- of `compare` ---

Tasks = Annotated[list[str] | None, _option(IO, "A task or a group of tasks; may be repeated.", "--task", "-t")]
TaskPrompts = Annotated[Path | None, _option(IO, "Prompts, .jsonl, with answers if you like.", "--prompts")]
Scorer = Annotated[str | None, _option(IO, "exact, number or file.py:function: rates the answers to --prompts.")]
Run = Annotated[Path | None, _option(IO, "The folder that takes rows and report.", "--out", "-o", metavar="RUN")]
Resume = Annotated[bool, _option(IO, "Go on with the run in --out.", "--resume")]
RetryFailed = Annotated[bool, _option(IO, "Try failed rows again.", "--retry-failed")]
Samplers = Annotated[
    list[str] | None, _option(SHAPE, "A spec or preset:NAME; repeat it for each to compare.", "--sampler", "-s")
]
Limit = Annotated[int, _option(IO, "Problems a task.", min=1)]
Seeds = Annotated[str, _option(SHAPE, "Each problem is decoded once with each: 0,1,2.")]
Split = Annotated[str, _option(IO, "heldout or train: which problems of a task.")]
ProblemSeed = Annotated[int, _option(IO, "Which of them.")]
Sweep = Annotated[
    bool,
    _option(IO, "Decode each sampler at every value of its quality parameter, beside threshold's and fixed's: curves."),
]
Replays = Annotated[int, _option(IO, "Problems a task whose decoding the report replays.", min=0)]
CostRatio = Annotated[
    float | None,
    _option(IO, "A drafter's forward in forwards of the model, for the simulated speed-up; its size if not given."),
]
NoReferences = Annotated[
    bool, _option(IO, "Decode no sequential and no oracle: no agreement, no floor.", "--no-references")
]
ComparedBy = Annotated[str, _option(RUN, "local, torchrun or ray: who decodes.", "--executor")]

# --- of `bench` ---

Timed = Annotated[list[str] | None, typer.Argument(metavar="[MODEL]...", help="Embedded models, folders, hub ids.")]
Shapes = Annotated[
    list[str] | None,
    _option(
        IO,
        "A published shape with random weights: llada-8b, dream-7b, llamagen-xl, mar-l, random-2m, random-100m, "
        "random-100m-ar or random-wide; may be repeated.",
        "--shape",
    ),
]
Document = Annotated[Path | None, _option(IO, "Write the JSON document there.", "--output", "-o", metavar="FILE")]
Batches = Annotated[str, _option(SHAPE, "Rows decoded at once, with commas.", "--batch")]
NewTokens = Annotated[str, _option(SHAPE, "Tokens to fill, with commas.", "--new")]
Contexts = Annotated[str, _option(SHAPE, "Tokens before them, with commas; 0 is a short question.", "--context")]
TimedPrompts = Annotated[
    Path | None, _option(IO, "Rows are these prompts, .jsonl or .txt, and end where they end.", "--prompts")
]
Pairs = Annotated[int, _option(RUN, "How often each loop is timed, all in turn.", min=1)]
Threads = Annotated[int, _option(RUN, "Threads of the processor.", min=1)]
NoBeside = Annotated[bool, _option(RUN, "Time no other loops beside.", "--no-beside")]
Memory = Annotated[bool, _option(RUN, "Measure how memory grows in place of time.", "--memory")]

# --- groups: a field is an option ---


@dataclass
class Randomness:
    """How tokens are drawn from the model's distribution."""

    temperature: Temperature = None
    top_k: TopK = None
    top_p: TopP = None


@dataclass
class Sampling(Randomness):
    """Arguments of `generate` and `compare`; None leaves the default, or a preset's own."""

    max_new_tokens: MaxNewTokens = None
    cfg: Cfg = None


@dataclass
class TextSampling(Sampling):
    """Arguments of `generate` for text."""

    sampler: Sampler = None
    min_new_tokens: MinNewTokens = None
    block_length: BlockLength = None
    min_p: MinP = None
    repetition_penalty: RepetitionPenalty = None


@dataclass
class ImageSampling:
    """Arguments of `generate` for images."""

    temperature: ImageTemperature = None
    top_k: TopK = None
    top_p: TopP = None
    cfg: ImageCfg = None
    cfg_interval: CfgInterval = None
    negative_prompt: NegativePrompt = None


@dataclass
class Problems:
    """Where the problems of a run come from, and where its results go."""

    prompts: TaskPrompts = None
    scorer: Scorer = None
    out: Run = None
    resume: Resume = False


@dataclass
class Placing:
    """Arguments of `load`."""

    device: Device = "auto"
    dtype: Dtype = "auto"
    device_map: DeviceMap = None
    quantize: Quantize = None
    cuda_graphs: CudaGraphs = False
    revision: Revision = None
    offline: Offline = False


@dataclass
class TextPlacing(Placing):
    """Arguments of `load` for models of text."""

    mask_id: MaskId = None


@dataclass
class ImagePlacing(Placing):
    """Arguments of `load` for models of images."""

    decoder: Decoder = None
    text_encoder: TextEncoder = None


@dataclass
class AnyPlacing(ImagePlacing, TextPlacing):
    """Arguments of `load`."""


def given(group: Any) -> dict[str, Any]:
    """The options of a group as keyword arguments, without those that were left out."""
    return {field.name: value for field in fields(group) if (value := getattr(group, field.name)) is not None}


def command(function: Callable[..., None]) -> Callable[..., None]:
    """A command whose parameters may be groups: typer sees their fields in place of them, and --debug at the end."""
    groups: dict[str, type] = {}
    parameters: list[inspect.Parameter] = []

    def add(name: str, annotation: Any, default: Any) -> None:
        parameters.append(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        )

    hints = get_type_hints(function, include_extras=True)
    for name, parameter in inspect.signature(function).parameters.items():
        group = hints[name]
        if isinstance(group, type) and is_dataclass(group):
            groups[name] = group
            types = get_type_hints(group, include_extras=True)
            for field in fields(group):
                add(field.name, types[field.name], field.default)
        else:
            add(name, group, parameter.default)
    add("debug", Debug, False)

    @wraps(function)
    def expanded(*, debug: bool = False, **values: Any) -> None:
        built = {
            name: group(**{field.name: values.pop(field.name) for field in fields(group)})
            for name, group in groups.items()
        }
        function(**built, **values)

    expanded.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    expanded.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return expanded
