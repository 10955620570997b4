"""The arguments of `generate` and `stream`, each declared once.

Checks, docstrings, the options of the commands, the server's fields, lm-eval's arguments and the hints for names of
other libraries are generated from these declarations.
"""

# ruff: noqa: RUF009  # a declaration makes a field

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar

from pardec.models.errors import SpecError, did_you_mean
from pardec.samplers.limits import LEAST, MAX_SCALE, RANGE, divides

from .argument import Argument, Number, Option, Such, Takes, Whole, argument, check_count, is_number, is_whole
from .other_names import WORDS
from .stop_strings import read as read_stops
from .structured.forms import form_of
from .tools import check_choice, check_tools

if TYPE_CHECKING:
    from torch import Tensor

    from pardec.samplers.continuous.contracts import ContinuousSampler
    from pardec.samplers.events import Event
    from pardec.samplers.masked.contracts import MaskedSampler
    from pardec.samplers.rng import Source
    from pardec.samplers.scales.contracts import ScaleSampler
    from pardec.samplers.spec import Policy, Spec
    from pardec.samplers.speculative.contracts import SpeculativeSampler

    AnySampler = str | Spec | Policy | MaskedSampler | SpeculativeSampler | ContinuousSampler | ScaleSampler

_T = TypeVar("_T")

MAX_NEW_TOKENS = 64
MOST_BIAS = 100  # OpenAI's bound
MOST_PIXELS = 2**14  # largest side of an image
CLASS_IMAGES: Mapping[str, Any] = {"temperature": 1.0}  # other defaults for continuous tokens and token maps


class Arguments(TypedDict, total=False):
    """The types of the arguments besides the prompt, for editors and type checkers."""

    input_ids: Tensor | Sequence[Tensor | Sequence[int]] | None
    sampler: AnySampler | None
    max_new_tokens: int
    min_new_tokens: int | None
    block_length: int | None
    temperature: float
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    logit_bias: Mapping[int, float] | None
    cfg: float | None
    cfg_interval: int | None
    seed: int | Sequence[int]
    template: str | Sequence[Any] | Tensor | None
    allowed: Any
    logits_processor: Sequence[Callable[[Tensor, Tensor], Tensor]] | None
    response_format: Mapping[str, Any] | None
    tools: Sequence[Mapping[str, Any]] | None
    tool_choice: str | Mapping[str, Any] | None
    parallel_tool_calls: bool | None
    chat_template_kwargs: Mapping[str, Any] | None
    stop: str | Sequence[str] | None
    stop_ids: int | Sequence[int] | None
    block_align: Literal["prompt", "absolute"]
    label: int | Sequence[int] | None
    num_images: int
    size: Sequence[int] | None
    num_return_sequences: int
    prompt_embeds: Any
    negative_prompt: str | Sequence[str] | None
    source: Source | None
    logprobs: int | None
    logprob_ids: Sequence[int] | None
    callback: Callable[[Event], object] | None


class AnyNames(Arguments, total=False):
    """The arguments of `Arguments`, also under the names that other libraries give them."""

    max_tokens: int
    max_completion_tokens: int
    max_output_tokens: int
    min_tokens: int | None
    min_gen_toks: int | None
    n: int
    stop_strings: str | Sequence[str] | None
    stop_sequences: str | Sequence[str] | None
    eos_token_id: int | Sequence[int] | None
    do_sample: bool


# --- checks that are more than a range ---


def _check_size(name: str, value: Any, example: str) -> None:
    sides = value if isinstance(value, Sequence) and not isinstance(value, str) else ()
    if len(sides) != 2 or not all(is_whole(side) and 1 <= side <= MOST_PIXELS for side in sides):
        raise SpecError(
            f"size must be a height and a width in pixels, from 1 to {MOST_PIXELS} each, got {value!r}", hint=example
        )


def _check_seed(name: str, value: Any, example: str) -> None:
    check_count(name, value)
    for seed in value if isinstance(value, Sequence) else [value]:
        Whole()(name, seed, example)


def _check_bias(name: str, value: Any, example: str) -> None:
    if not isinstance(value, Mapping):
        raise SpecError(f"logit_bias must be a dict (a JSON object) of ids and numbers, got {value!r}", hint=example)
    check_count(name, list(value))
    for token, bias in value.items():
        if not is_whole(token) or token < 0:
            raise SpecError(f"logit_bias has {token!r}, which is not the id of a token", hint=example)
        if not is_number(bias) or abs(bias) > MOST_BIAS:
            raise SpecError(
                f"logit_bias of token {token} must be from -{MOST_BIAS} to {MOST_BIAS}, got {bias!r}", hint=example
            )


_ALIGN = Such(
    lambda value: isinstance(value, str) and value in ("prompt", "absolute"),
    'block_align must be "prompt" or "absolute", got {value!r}',
)
_VARIABLES = Such(
    lambda value: isinstance(value, Mapping) and all(isinstance(key, str) for key in value),
    "{name} must be a dict (a JSON object) of names and values, got {value!r}",
)
_SOURCE = Such(
    lambda value: callable(getattr(value, "uniform", None)),
    "source has no method uniform, got {value.__class__.__name__}",
)
_PROCESSORS = Such(
    lambda value: isinstance(value, Sequence) and all(map(callable, value)),
    "logits_processor must be a list of processors, got {value!r}",
)
_CALLBACK = Such(callable, "callback cannot be called, got {value.__class__.__name__}")
_FLAG = Such(lambda value: isinstance(value, bool), "{name} must be True or False, got {value!r}")
_PENALTY = Number(("from -2 to 2", lambda x: -2 <= x <= 2))

# --- the declarations ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One checked set of arguments."""

    # fmt: off
    input_ids: Any = argument(
        doc="token ids in place of a prompt: LongTensor [B, P], or a list of 1-D tensors or lists of unequal length.",
        check=check_count, takes=Takes.TEXT, json="prompt",
        related=(
            "attention_mask", "position_ids", "token_type_ids", "prompt_token_ids", "prompt_ids", "ids",
            "inputs_embeds",
        ),
        hint="token ids go to input_ids=, rows of unequal length in a list; they need no padding and no mask",
    )
    sampler: AnySampler | None = argument(
        doc='a spec such as "threshold:tau=0.9@dual", a "preset:name", or None for the default.',
        option=Option("A spec or preset:NAME; see pardec list.", ("--sampler", "-s")), lm_eval=True,
    )
    max_new_tokens: int = argument(
        MAX_NEW_TOKENS, doc="positions to fill after the prompt.", check=Whole(1, 2**24),
        example="max_new_tokens=64 asks for 64 tokens after the prompt", per_prompt=True, compared=True,
        option=Option("Tokens to generate, by default 64.", ("--max-new-tokens", "-n")), json="max_tokens",
        lm_eval=True,
        aliases=("max_tokens", "max_completion_tokens", "max_output_tokens"),
        related=(
            "max_length", "max_gen_toks", "max_gen_len",
            "gen_length", "gen_len", "length", "num_tokens", "n_predict",
        ),
    )
    min_new_tokens: int | None = argument(
        doc="positions after the prompt at which no end token is committed.", check=Whole(0),
        example="min_new_tokens=8 has no end token among the first 8; leave it out to let a row end anywhere",
        takes=Takes.TEXT, off=(None, 0), in_request=True, fills=True,
        option=Option("Fewest tokens before an end token."), json="min_tokens", lm_eval=True,
        aliases=("min_gen_toks", "min_tokens"), related=("min_length",),
    )
    block_length: int | None = argument(
        doc="None takes min(32, max_new_tokens); block-causal models have their own.", check=Whole(1),
        example="block_length=32, or leave it out for min(32, max_new_tokens)", takes=Takes.MASKED, compared=True,
        option=Option("Tokens in a block, by default at most 32."), lm_eval=True,
        related=("block_size", "num_blocks", "gen_blocks"),
        hint="block_length=32 is the length of a block, not their number",
    )
    temperature: float = argument(
        0.0,
        doc="0 takes the likeliest token; above 0 tokens are sampled. For continuous tokens it scales the noise of "
        "each step of the head, and is 1 by default, as it is for token maps.",
        check=Number(("at least 0", lambda x: x >= 0), (RANGE, divides)),
        example="temperature=0 takes the likeliest token, 1 samples from the model's own distribution", in_request=True,
        compared=True,
        option=Option(
            "0, the default, takes the most likely token.",
            images="0 takes the most likely token; by default the model's own temperature.",
        ),
        lm_eval=True, related=("temp", "sampling", "greedy"),
        hint="temperature=0, the default, takes the likeliest token, and anything above samples one",
    )
    top_k: int | None = argument(
        doc="sample from the top_k likeliest tokens.", check=Whole(1),
        example="top_k=50 keeps the 50 likeliest tokens; leave it out to keep all", takes=~Takes.VECTORS,
        in_request=True, filters=(None,), compared=True,
        option=Option("Sample from the k most likely tokens.", images=True), lm_eval=True, off_elsewhere=(0, -1),
    )
    top_p: float | None = argument(
        doc="sample from the likeliest tokens that hold this share of the probability.",
        check=Number(("above 0 and at most 1", lambda x: 0 < x <= 1)),
        example="top_p=0.9 keeps the likeliest tokens that hold 90% of the probability; leave it out to keep all",
        takes=~Takes.VECTORS, in_request=True, filters=(None, 1), compared=True,
        option=Option("Sample from the most likely tokens of total probability p.", images=True), lm_eval=True,
    )
    min_p: float | None = argument(
        doc="leave out tokens that are less likely than min_p times the likeliest.",
        check=Number(("at least 0 and at most 1", lambda x: 0 <= x <= 1)),
        example="min_p=0.05 leaves out tokens less than 0.05 times as likely as the likeliest; 0 keeps all",
        takes=Takes.TEXT | Takes.CODES, off=(None, 0), in_request=True, filters=(None, 0), compared=True,
        option=Option("Exclude tokens below p times the highest probability."), lm_eval=True,
        related=("typical_p", "top_a", "epsilon_cutoff", "eta_cutoff", "top_h"),
        hint="top_k=, top_p= and min_p= leave unlikely tokens out",
    )
    repetition_penalty: float | None = argument(
        doc="above 1 makes tokens that the row already holds, the prompt's included, less likely, as in transformers; "
        "a masked model's row holds the prompt's and all committed tokens, at any position; end tokens are excepted.",
        check=Number((f"from {LEAST:g} to {MAX_SCALE:g}", lambda x: LEAST <= x <= MAX_SCALE)),
        example="repetition_penalty=1.1 makes tokens that the row holds already less likely; 1 is off",
        takes=Takes.TEXT, off=(None, 1), in_request=True, option=Option("Above 1, repeated tokens are less likely."),
        lm_eval=True,
    )
    presence_penalty: float | None = argument(
        doc="subtracted from the logits of tokens that the answer already holds, the prompt's not counted, as in "
        "OpenAI's API; a masked model's answer holds all committed tokens, at any position; end tokens are excepted.",
        check=_PENALTY, example="presence_penalty=0.5 makes tokens of the answer less likely again; 0 is off",
        takes=Takes.TEXT, off=(None, 0), in_request=True,
        option=Option("Above 0, tokens that the answer holds are less likely."),
    )
    frequency_penalty: float | None = argument(
        doc="like presence_penalty, times how often the answer already holds the token.",
        check=_PENALTY, example="frequency_penalty=0.5 makes a token less likely with each time it occurs; 0 is off",
        takes=Takes.TEXT, off=(None, 0), in_request=True,
        option=Option("Above 0, tokens are less likely the more often the answer holds them."),
    )
    logit_bias: Any = argument(
        doc="{id: number}, numbers from -100 to 100 that are added to the logits of these tokens; -100 practically "
        "excludes a token.",
        check=_check_bias, example="logit_bias={11: -100} never writes token 11, unless nothing else is allowed",
        takes=Takes.TEXT, off=(None, {}), related=("sequence_bias",),
        hint="logit_bias={11: -5} makes token 11 less likely",
    )
    cfg: float | None = argument(
        doc="guidance, l_u + cfg * (l_c - l_u); None is off. For continuous tokens it guides the noise. For token "
        "maps it is VAR's number: l_c + t * (l_c - l_u), t from 0 at the first map to cfg at the last; 0 is off. "
        "Infinity's is cfg at every map, and 1 is off.",
        check=Number(("at least 0", lambda x: x >= 0), (f"at most {MAX_SCALE:g}", lambda x: x <= MAX_SCALE)),
        example="cfg=1 is the model without guidance, larger is stronger; leave it out to turn guidance off",
        takes=~Takes.AR, in_request=True, compared=True,
        option=Option(
            "Classifier-free guidance; 1 is none.",
            images="Classifier-free guidance, 1 is none; by default the model's own.",
        ),
        lm_eval=True, related=("cfg_scale", "guidance_scale", "guidance", "w", "classifier_free_guidance"),
        hint="cfg=1.5 turns guidance on, 1 is without it; LLaDA's cfg_scale is cfg - 1",
    )
    cfg_interval: int | None = argument(
        doc="for images, guide the first cfg_interval + 2 tokens only.", check=Whole(0, 2**24),
        example="cfg_interval=100 guides the first 102 tokens of an image; leave it out to guide all",
        takes=Takes.AR_IMAGES, order="counts tokens from the first on", in_request=True, compared=True,
        option=Option("Guide the first N + 2 tokens only.", images=True, more={"metavar": "N"}),
    )
    seed: int | Sequence[int] = argument(
        0, doc="one number (row i gets the seed derived from it and i), or a list with one per row.", check=_check_seed,
        example="seed=0, or seed=[0, 1] with one seed per row", per_prompt=True,
        option=Option("Random seed; prompt i uses a seed derived from it and i.", alone=True),
        related=("random_seed", "generator", "manual_seed", "seeds"), hint="seed=0, or seed=[0, 1] with one per row",
    )
    template: Any = argument(
        doc="text with mask tokens, or ids with None, that follows the prompt in place of max_new_tokens masks; one, "
        "or one per row.",
        check=check_count, takes=Takes.TEXT, fills=True, per_prompt=True,
    )
    allowed: Any = argument(
        doc="which tokens each position may take: a function (row, index) -> ids, texts of one token, or None for "
        "any; a list of such choices, one per position; a dict {index: choices}; or a list with one of these per row. "
        "Index 0 is the first position after the prompt. It holds in any order, and for every stage.",
        takes=Takes.TEXT | Takes.CODES, fills=True, per_prompt=True,
        option=Option("JSON file: the tokens allowed at each position.", ("--allowed",), alone=True),
        related=("prefix_allowed_tokens_fn", "constraints", "force_words_ids", "grammar"),
        hint="allowed= says which tokens each position may take",
    )
    logits_processor: Any = argument(
        doc="transformers' logits processors, run on the history of each token; AR models only.",
        check=_PROCESSORS, example="logits_processor=[RepetitionPenaltyLogitsProcessor(1.1)], from transformers",
        takes=Takes.AR, off=(None, "", [], ()), order="reads the tokens before a position",
        instead={Takes.MASKED: "leave it out; allowed= says which tokens each position may take"},
        related=(
            "no_repeat_ngram_size", "length_penalty", "bad_words_ids", "logits_processors", "suppress_tokens",
            "encoder_repetition_penalty",
        ),
        hint="logits_processor=[...] takes transformers' processors on autoregressive models; repetition_penalty= "
        "works on all",
    )
    response_format: Any = argument(
        doc='a JSON schema, alone or in OpenAI\'s form {"type": "json_schema", "json_schema": {"schema": {...}}}, or '
        '{"type": "json_object"}: every answer is complete JSON of it, within max_new_tokens, and `Result.parsed` has '
        "its values. Masked models fill a template of the schema. Autoregressive ones need llguidance (extra "
        "`structured`).",
        check=lambda name, value, example: form_of(value), takes=Takes.TEXT, per_prompt=True,
        option=Option("JSON file: a schema that every answer keeps to.", ("--response-format",), alone=True),
        related=("json_schema", "guided_json", "json_mode", "output_schema", "response_schema", "structured_outputs"),
        hint="response_format={...} takes a JSON schema that every answer keeps to",
    )
    tools: Any = argument(
        doc="functions that the answer may call, in OpenAI's form: the chat template shows them, and a call in the "
        "answer keeps to the schema of its parameters. Masked models need a template.",
        check=check_tools, takes=Takes.TEXT, off=(None, [], ()), related=("functions",),
        hint="tools=[...] takes functions in OpenAI's form",
    )
    tool_choice: Any = argument(
        doc='"auto", the default; "none"; "required" for an answer that is a call; or {"type": "function", '
        '"function": {"name": ...}} for a call of this one.',
        check=check_choice, takes=Takes.TEXT, related=("function_call",), hint='tool_choice="required" asks for a call',
    )
    parallel_tool_calls: bool | None = argument(
        doc="False for one call at most; by default as many as the chat template can write.", check=_FLAG,
        example="parallel_tool_calls=False allows one call", takes=Takes.TEXT,
    )
    chat_template_kwargs: Any = argument(
        doc='variables of the chat template, such as {"enable_thinking": False}, for prompts that are messages.',
        check=_VARIABLES, example='chat_template_kwargs={"enable_thinking": False}', takes=Takes.TEXT,
        off=(None, {}), related=("enable_thinking", "chat_template_args"),
    )
    stop: Any = argument(
        doc="a text, or texts, that end a row: its text is cut before the one that is complete first, and its tokens "
        "after the token that completes this stop string. The prompt is not searched.",
        check=lambda name, value, example: read_stops(value), takes=Takes.TEXT, fills=True, per_prompt=True,
        option=Option(r"Stop before this text, \n is a line break; may be repeated.", ("--stop",), alone=True),
        aliases=("stop_strings", "stop_sequences"), related=("stop_words", "stop_sequence", "stop_texts", "until"),
        hint='stop=["\\n\\n"] ends a row before a text',
    )
    stop_ids: Any = argument(
        doc="end tokens; None takes the model's (none with a template), [] never stops.", check=check_count,
        takes=Takes.TEXT, compared=True, json="stop_token_ids",
        aliases=("eos_token_id",), related=("eos_id", "stop_token_ids", "stop_tokens", "terminators", "stop_token_id"),
        hint="stop_ids=[2] ends a row at a token; the model's own end tokens are known",
    )
    block_align: str = argument(
        "prompt", doc='count blocks from the end of the "prompt", or "absolute": from position 0.',
        check=_ALIGN,
        example='"prompt" counts blocks from the end of the prompt, "absolute" from position 0', compared=True,
        lm_eval=True,
    )
    label: Any = argument(
        doc="in place of a prompt, the class or classes for an image model; with continuous tokens and token maps, -1 "
        "is none.",
        check=check_count, takes=Takes.IMAGES, related=("class_labels", "class_label", "labels"),
        hint="label=207, or a list of classes",
    )
    num_images: int = argument(
        1, doc="images of each prompt or label, one row each.", check=Whole(1, 2**16),
        example="num_images=4 draws four images of each prompt", takes=Takes.IMAGES,
        instead={Takes.TEXT: "num_return_sequences= gives several answers"}, json="n",
        related=("num_images_per_prompt", "images_per_prompt"),
    )
    size: Sequence[int] | None = argument(
        doc="for images, (height, width) in pixels, a size that the model has; None is its default.", check=_check_size,
        example="size=(256, 256), or leave it out for the model's own", takes=Takes.IMAGES,
        related=("height", "width", "image_size", "resolution"),
        hint="size=(256, 256) is the height and width of images in pixels",
    )
    num_return_sequences: int = argument(
        1, doc="for text, rows of each prompt, one after the other; they need a temperature.", check=Whole(1, 2**16),
        example="num_return_sequences=4 gives four answers to each prompt", takes=Takes.TEXT,
        instead={Takes.IMAGES: "num_images={value} draws that many images of each"},
        option=Option("Samples of each prompt; needs a temperature.", alone=True, more={"min": 1}), json="n",
        aliases=("n",), related=("num_samples", "num_generations", "num_completions", "num_return"),
    )
    prompt_embeds: Any = argument(
        doc="in place of a prompt, the text encoder's output for captions, [B, n, D] or a list.", check=check_count,
        takes=Takes.IMAGES,
    )
    negative_prompt: Any = argument(
        doc="for captions with guidance, what guidance steers away from: one, or one per prompt.", takes=Takes.IMAGES,
        option=Option("A caption that guidance moves away from.", images=True),
    )
    source: Any = argument(
        doc="recorded uniforms in place of a seed.", check=_SOURCE,
        example="pass an object like pardec.samplers.rng.Keyed, or leave source out",
    )
    logprobs: int | None = argument(
        doc="record the log-probability of each token, by the model's own distribution at the forward that committed "
        "it, and of the `logprobs` likeliest ones; 0 records each token's own, None nothing.",
        check=Whole(0),
        example="logprobs=0 records each token's own, logprobs=5 also the five likeliest; leave it out for none",
        takes=Takes.TEXT | Takes.CODES,
        option=Option(
            "In rows and --json: each token's log-probability, and those of the K likeliest.", alone=True,
            more={"metavar": "K", "min": 0},
        ),
        related=(
            "output_scores", "output_logits", "top_logprobs", "return_logprobs", "logprob_token_ids",
            "allowed_logprobs",
        ),
        hint="logprobs=5 records the log-probability of each token and of the five likeliest; logprob_ids= those of "
        "some ids",
    )
    logprob_ids: Any = argument(
        doc="ids whose log-probabilities are recorded as well; given alone, it implies logprobs=0.",
        check=check_count, takes=Takes.TEXT | Takes.CODES,
    )
    callback: Callable[[Event], object] | None = argument(
        doc="called with every event.", check=_CALLBACK, example="pass a function that takes one event",
    )
    # fmt: on

    def __post_init__(self) -> None:
        for each in ARGUMENTS.values():
            each.verify(getattr(self, each.name))

    @classmethod
    def of(cls, arguments: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> Settings:
        """Reads arguments; missing ones come from a preset, then from `defaults`, then from the class."""
        for name in arguments:
            if name not in ARGUMENTS:
                raise _unknown(name)
        arrays = [name for name in ("seed", "label") if hasattr(arguments.get(name), "tolist")]  # and tensors
        arguments = {**arguments, **{name: arguments[name].tolist() for name in arrays}}
        settings = cls(**{**(defaults or {}), **arguments})
        if isinstance(settings.sampler, str) and settings.sampler.startswith("preset:"):
            from pardec.samplers.presets import preset

            chosen = preset(settings.sampler)
            if chosen.template and settings.template is None:
                raise SpecError(
                    f"{settings.sampler} needs a template: it gives {chosen.template}",
                    hint=f"pass template=, or without one decode with another sampler than {chosen.spec!r}",
                )
            added: dict[str, Any] = {key: value for key, value in chosen.arguments.items() if key not in arguments}
            settings = replace(settings, sampler=chosen.spec, **added)
            if "block_length" in added:  # the caller's canvas may be shorter than the preset's blocks
                settings = replace(settings, block_length=min(added["block_length"], settings.max_new_tokens))
        return settings

    @classmethod
    def signature(cls) -> inspect.Signature:
        """The signature that `help(model.generate)` shows."""
        kind = inspect.Parameter
        return inspect.Signature(
            [
                kind("self", kind.POSITIONAL_OR_KEYWORD),
                kind("prompt", kind.POSITIONAL_OR_KEYWORD, default=None),
                *(kind(each.name, kind.KEYWORD_ONLY, default=each.default) for each in ARGUMENTS.values()),
            ]
        )

    def check_taken(self, model: str, kind: Takes) -> None:
        """Raises SpecError for an argument that models of this kind do not take."""
        for each in ARGUMENTS.values():
            each.check_taken(model, kind, getattr(self, each.name))

    def check_sampled(self, name: str, things: str, temperature: float) -> None:
        """Raises SpecError if the argument `name` asks for several `things` at temperature 0: they would be equal."""
        if (count := getattr(self, name)) > 1 and not self.temperature:
            raise SpecError(
                f"{name}={count} asks for several {things}, and temperature=0 takes the likeliest",
                hint=f"sample them with temperature={temperature}, or leave {name} out",
            )

    def check_shortest(self, length: int) -> None:
        """Raises SpecError if end tokens are excluded at more positions than the shortest row has."""
        if (self.min_new_tokens or 0) > length:
            raise SpecError(
                f"min_new_tokens={self.min_new_tokens} is more than the {length} tokens of a row",
                hint="raise max_new_tokens, or ask for fewer",
            )

    @property
    def bounds_length(self) -> bool:
        """Whether an argument sets a minimum length of rows."""
        return self.block_length is not None or bool(self.min_new_tokens)

    def for_request(self) -> dict[str, Any]:
        """The arguments that a loop's request has under the same names, without those that change nothing."""
        values = {each.name: each.resolved(getattr(self, each.name)) for each in ARGUMENTS.values() if each.in_request}
        return {name: value for name, value in values.items() if value is not None}


ARGUMENTS: Mapping[str, Argument] = {
    each.name: replace(each.metadata["argument"], name=each.name) for each in fields(Settings)
}
OTHER_NAMES: Mapping[str, str] = {  # argument of another library -> what to write in its place
    **{name: each.hint or each.example for each in ARGUMENTS.values() for name in (*each.aliases, *each.related)},
    **WORDS,
}
# Numbers that shape the distribution of image models; checkpoints have defaults for them.
SHAPING = tuple(each.name for each in ARGUMENTS.values() if each.number and each.option and each.option.images)
FILLING = tuple(each.name for each in ARGUMENTS.values() if each.fills)  # not combined with response_format


def own_names(arguments: Mapping[str, Any]) -> Any:
    """Arguments under pardec's names, given also under names of other libraries that mean the same.

    `do_sample` is transformers': False is temperature 0, and True is temperature 1 unless there is another.
    """
    given = dict(arguments)
    for each in ARGUMENTS.values():
        for name in each.aliases:
            if name not in given:
                continue
            if each.name in given:
                raise SpecError(f"{name} is another name of {each.name}, and both are given", hint=f"leave {name} out")
            given[each.name] = given.pop(name)
    if "do_sample" in given:
        sample = given.pop("do_sample")
        if not isinstance(sample, bool):
            raise SpecError(f"do_sample must be True or False, got {sample!r}", hint="temperature=0.7 samples")
        if "temperature" in given and (given["temperature"] != 0) is not sample:
            raise SpecError(
                f"do_sample={sample} contradicts temperature={given['temperature']!r}", hint="leave do_sample out"
            )
        given.setdefault("temperature", 1.0 if sample else 0.0)
    return given


def documented(function: Callable[..., Any]) -> None:
    """Sets the signature that `help` shows, and replaces `{arguments}` in the docstring by the arguments."""
    function.__signature__ = Settings.signature()  # type: ignore[attr-defined]
    if function.__doc__ is not None:  # python -OO has none
        text = "\n".join(each.described(12) for each in ARGUMENTS.values())
        function.__doc__ = function.__doc__.replace(" " * 12 + "{arguments}", text)


def _unknown(name: str) -> SpecError:
    """The error for an unknown argument."""
    opening, known = f"generate takes no argument {name!r}", list(ARGUMENTS)
    if (hint := OTHER_NAMES.get(name)) is not None:
        own = hint.split("=")[0]  # many hints begin with pardec's name of the argument
        return SpecError(opening + did_you_mean(own, [own] if own in known else []), hint=hint)
    return SpecError(opening + did_you_mean(name, known), hint=f"it takes {', '.join(known)}")


def ignored_arguments(arguments: Mapping[str, Any], settings: Mapping[str, Any]) -> str | None:
    """The warning for arguments of no effect: filters where nothing is sampled, an interval where nothing is guided.

    Args:
        arguments: as they were passed.
        settings: the call's, as resolved.
    """
    if arguments.get("cfg_interval") is not None and settings.get("cfg") in (None, 1):
        return f"cfg_interval={arguments['cfg_interval']} has no effect without guidance; cfg=4 turns it on"
    filters = [each for each in ARGUMENTS.values() if each.filters]
    names = [each.name for each in filters if arguments.get(each.name) not in each.filters]
    if not names or settings.get("temperature") != 0:
        return None
    shown = " and ".join(f"{name}={arguments[name]}" for name in names)
    verb = "has" if len(names) == 1 else "have"
    return f"{shown} {verb} no effect: temperature=0 takes the likeliest token; temperature=0.7 samples"


def repeat_each(items: Sequence[_T], count: int) -> list[_T]:
    """Each item `count` times in a row: the rows of `num_return_sequences` and `num_images`."""
    return [item for item in items for _ in range(count)]
