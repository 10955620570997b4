"""The bodies of requests: OpenAI's fields, and additional ones of pardec.

Unsupported fields that would change the answer are refused, not ignored. Fields that a server may ignore by OpenAI's
definition, such as `user` and `metadata`, are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Protocol, Self

from pydantic import (
    BaseModel,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    ValidationInfo,
    create_model,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from pardec.models.errors import did_you_mean

from ..requests.argument import Takes
from ..requests.settings import ARGUMENTS
from .errors import UNSUPPORTED_THREAD

Number = StrictFloat | StrictInt
Seed = Annotated[StrictInt, Field(ge=-(2**63), lt=2**64)]
Texts = Annotated[list[StrictStr], Field(min_length=1, max_length=4096)]
Ids = Annotated[list[Annotated[StrictInt, Field(ge=0, lt=2**31)]], Field(min_length=1)]
FewIds = Annotated[list[Annotated[StrictInt, Field(ge=0, lt=2**31)]], Field(min_length=1, max_length=1024)]
Stop = Annotated[StrictStr, Field(max_length=1024)]

# Fields of OpenAI's and other servers without an effect on the answer.
IGNORED = frozenset(
    (
        *("user", "metadata", "store", "service_tier", "safety_identifier", "prediction", "request_id", "priority"),
        *("prompt_cache_key", "prompt_cache_retention", "cache_prompt", "cache_salt", "cache_control"),
    )
)
# Values that request nothing, of fields that are refused otherwise.
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "truncation": ("disabled",),
    "include": ([],),
    "reasoning": ({},),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "modalities": (["text"],),
    "suffix": ("",),
    "quality": ("auto", "standard"),
    "style": ("natural",),
    "background": ("auto", "opaque", False),
    "output_format": ("png",),
    "moderation": ("auto", "low"),
    "partial_images": (0,),
    "verbosity": ("medium",),
    "reasoning_effort": ("none",),
    "previous_response_id": (),
    "conversation": (),
    "thread": (),
    "thinking": ({"type": "disabled"},),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "include_stop_str_in_output": (False,),
    "use_beam_search": (False,),
    "length_penalty": (1.0,),
    "echo": (False,),
    "best_of": (1,),
    "bad_words": ([],),
    "grammar": ("",),
    "detokenize": (True,),
    "return_tokens_as_token_ids": (False,),
}
UNKNOWN = "unknown_parameter"  # the code of errors about fields that an endpoint does not have
_INSTEAD = dict.fromkeys(
    ("previous_response_id", "conversation", "thread"), "nothing is stored, send the whole conversation"
)
_SCHEMA = "response_format takes a JSON schema"
# Fields of other servers, and what serves in their place.
_ELSEWHERE = {
    **dict.fromkeys(("guided_json", "structured_outputs", "json_schema", "guided_grammar"), _SCHEMA),
    "guided_regex": f"{_SCHEMA}, whose strings may have a pattern",
    "guided_choice": f"{_SCHEMA}, which may be an enum, and /v1/choose gives the probabilities of labels",
}


class Body(BaseModel, extra="forbid"):
    """A request's body, without fields that change nothing: null ones, `IGNORED` ones, and `NEUTRAL` values."""

    def as_text(self) -> Body:
        """The same request as a body of a completion or a chat completion, if it is one for text."""
        return self

    @model_validator(mode="before")
    @classmethod
    def _drop_neutral(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            raise ValueError("the body must be a JSON object")
        own = {
            name: value
            for name, value in data.items()
            if name in cls.model_fields or not (value is None or name in IGNORED or value in NEUTRAL.get(name, ()))
        }
        for name in own:
            if name in NEUTRAL and name not in cls.model_fields:
                code = UNSUPPORTED_THREAD if name == "thread" else None
                raise _unsupported(name, f"{name} is not supported: {_INSTEAD.get(name, 'leave it out')}", code=code)
            if name not in cls.model_fields:
                near = f": {hint}" if (hint := _ELSEWHERE.get(name)) else did_you_mean(name, cls.model_fields)
                known = f"there is no field {name!r}{near}"
                raise _unsupported(name, known, code=UNKNOWN)
        return own


def _unsupported(field: str, text: str, code: str | None = None) -> PydanticCustomError:
    return PydanticCustomError("unsupported", "{text}", {"text": text, "field": field, "code": code})


# The arguments that are numbers, by field, without those that are read by rules of their own.
NUMBERS = {
    field: each
    for name, each in ARGUMENTS.items()
    if each.number and (field := each.json or name) not in ("max_tokens", "n", "logprobs")
}


def numbers(kinds: Takes) -> Any:
    """Makes a base class with the numeric fields that models of these kinds take."""
    fields: dict[str, Any] = {
        field: ((StrictInt if each.number is int else Number) | None, None)
        for field, each in NUMBERS.items()
        if each.takes & kinds
    }
    return create_model("Numbers", __base__=Body, **fields)


class Sampled(Body):
    """The fields that requests for text and images share."""

    model: StrictStr | None = None
    n: Annotated[StrictInt, Field(ge=1)] | None = None
    seed: Seed | None = None
    sampler: StrictStr | None = None


class StreamOptions(BaseModel, extra="forbid"):
    """The contents of a stream in addition to text."""

    include_usage: StrictBool | None = None
    continuous_usage_stats: StrictBool | None = None  # vLLM's: every chunk has the usage so far, if any has
    include_denoise: StrictBool | None = None  # events "denoise" with the canvas, also where it may still change
    include_obfuscation: StrictBool | None = None  # has no effect here


class TextBody(Sampled, numbers(Takes.TEXT)):  # type: ignore[misc]
    """The fields that both forms of requests for text share."""

    max_tokens: Annotated[StrictInt, Field(ge=1)] | None = None
    stop: Stop | Annotated[list[Stop | None], Field(max_length=16)] | None = None
    stream: StrictBool | None = None
    stream_options: StreamOptions | None = None
    response_format: dict[str, Any] | None = None
    logit_bias: Annotated[dict[StrictStr, Number], Field(max_length=1024)] | None = None
    stop_token_ids: FewIds | None = None
    ignore_eos: StrictBool | None = None
    allowed: list[Any] | dict[str, Any] | None = None
    template: StrictStr | list[StrictInt | None] | None = None
    logprob_ids: FewIds | None = None
    return_token_ids: StrictBool | None = None
    do_sample: StrictBool | None = None

    @model_validator(mode="after")
    def _streams(self) -> Self:
        asked = [] if self.stream or self.stream_options is None else [name for name, on in self.stream_options if on]
        if asked:
            raise _unsupported("stream_options", f"stream_options.{asked[0]} needs stream=true")
        return self


class CompletionBody(TextBody):
    """`POST /v1/completions`."""

    prompt: StrictStr | Texts | Ids | Annotated[list[Ids], Field(min_length=1, max_length=4096)]
    max_tokens: Annotated[StrictInt, Field(ge=0)] | None = None  # 0 decodes nothing: with echo, scores the prompt
    echo: StrictBool | None = None
    best_of: StrictInt | None = None
    add_special_tokens: StrictBool | None = None  # false: texts get no beginning-of-text token, as in vLLM
    logprobs: Annotated[StrictInt, Field(ge=0)] | None = None


class Block(BaseModel, extra="forbid"):
    """A part of a message; `cache_control` and empty fields are ignored."""

    @model_validator(mode="before")
    @classmethod
    def _drop_neutral(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        return {name: value for name, value in data.items() if name != "cache_control" and value is not None}


class Part(Block):
    """A part with text."""

    type: Literal["text"]
    text: StrictStr


class _HasText(Protocol):
    text: str


def joined(content: str | Sequence[_HasText]) -> str:
    """The text of a message's content: one text, or parts of it."""
    return content if isinstance(content, str) else "".join(part.text for part in content)


class CalledFunction(BaseModel, extra="forbid"):
    """The name of a called function, and its arguments as JSON."""

    name: StrictStr
    arguments: StrictStr


class ToolCall(BaseModel, extra="ignore"):
    """A call in an earlier answer."""

    id: StrictStr = ""
    type: Literal["function"] = "function"
    function: CalledFunction


_ROLES = ("system", "developer", "user", "assistant", "tool", "function")


class Message(BaseModel, extra="ignore"):
    """A message of a conversation; `refusal` and empty fields are ignored."""

    role: StrictStr
    tool_calls: list[ToolCall] | None = None
    content: Annotated[StrictStr | list[Part] | None, Field(validate_default=True)] = None  # None beside calls alone
    tool_call_id: StrictStr | None = None  # the call that a message of the role "tool" answers
    name: StrictStr | None = None  # of who speaks, or of a called function

    @field_validator("role")
    @classmethod
    def _is_spelt_right(cls, role: str) -> str:
        if role not in _ROLES and (near := did_you_mean(role, _ROLES)):  # templates may have others
            raise ValueError(f"there is no role {role!r}{near}")
        return role

    @model_validator(mode="before")
    @classmethod
    def _refuse_calls(cls, data: Any) -> Any:
        if isinstance(data, dict) and (data.get("function_call") or data.get("audio")):
            raise ValueError("function_call and audio are not supported: use tool_calls")
        if isinstance(data, dict):
            for name, value in data.items():
                if name not in (*cls.model_fields, "refusal") and value not in (None, [], {}, "", False):
                    raise ValueError(f"a message has no field {name!r}{did_you_mean(name, cls.model_fields)}")
        return data

    @field_validator("content")
    @classmethod
    def _needs_text(cls, content: Any, info: ValidationInfo) -> Any:
        if content is None and not info.data.get("tool_calls"):
            raise ValueError("is missing: give text")
        return content

    @property
    def text(self) -> str:
        """The text of its parts."""
        return joined(self.content or "")

    @property
    def document(self) -> dict[str, Any]:
        """The message as chat templates take it."""
        document: dict[str, Any] = {"role": self.role, "content": self.text}
        document |= {"tool_calls": [call.model_dump() for call in self.tool_calls]} if self.tool_calls else {}
        return document | self.model_dump(include={"tool_call_id", "name"}, exclude_none=True)


class ChatBody(TextBody):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=4096)]
    max_completion_tokens: Annotated[StrictInt, Field(ge=1)] | None = None
    logprobs: StrictBool | None = None
    top_logprobs: Annotated[StrictInt, Field(ge=0)] | None = None
    tools: Annotated[list[dict[str, Any]], Field(max_length=128)] | None = None
    tool_choice: StrictStr | dict[str, Any] | None = None
    parallel_tool_calls: StrictBool | None = None
    chat_template_kwargs: Annotated[dict[StrictStr, Any], Field(max_length=64)] | None = None


class ChooseBody(Body):
    """`POST /v1/choose`: the probabilities of labels, for prompts or one conversation."""

    model: StrictStr | None = None
    prompt: StrictStr | Texts | None = None
    messages: Annotated[list[Message], Field(min_length=1, max_length=4096)] | None = None
    slots: Annotated[
        dict[StrictStr, Annotated[list[Annotated[StrictStr, Field(max_length=1024)]], Field(max_length=1024)]],
        Field(min_length=1, max_length=64),
    ]
    answer: Annotated[StrictStr, Field(max_length=2**14)] | None = None

    @model_validator(mode="after")
    def _one_form(self) -> ChooseBody:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give either prompt or messages")
        return self


class ImageBody(Sampled, numbers(Takes.IMAGES)):  # type: ignore[misc]
    """`POST /v1/images/generations`."""

    prompt: StrictStr | None = None
    label: StrictInt | None = None  # for models of classes
    negative_prompt: StrictStr | None = None
    size: StrictStr | None = None
    response_format: Literal["b64_json"] | None = None
    stream: Literal[False] | None = None
