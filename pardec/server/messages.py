"""`POST /v1/messages` for text, in the form of Anthropic's API (https://docs.anthropic.com/en/api/messages)."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, StrictBool, StrictInt, StrictStr, field_validator, model_validator

from ..requests.argument import Takes
from ..requests.tools import MOST_TOOLS
from ..result import Result
from .answers import DeltaAnswer, finish_reason, text_of, typed
from .errors import RequestError
from .schemas import Block, Body, ChatBody, Part, Sampled, Stop, joined, numbers

RENAMED = {"stop": "stop_sequences", "response_format": "output_config.format"}
_END_OF_TURN = {"stop_reason": "end_turn", "stop_sequence": None}


class ToolUse(Block):
    """A call in an earlier answer."""

    type: Literal["tool_use"]
    id: StrictStr
    name: StrictStr
    input: dict[str, Any]

    @property
    def call(self) -> dict[str, Any]:
        """The call in a message of a chat."""
        function = {"name": self.name, "arguments": json.dumps(self.input, ensure_ascii=False)}
        return {"id": self.id, "type": "function", "function": function}


class ToolResult(Block):
    """The result of a call; `is_error` puts "Error: " before its text."""

    type: Literal["tool_result"]
    tool_use_id: StrictStr
    content: StrictStr | list[Part] = ""
    is_error: StrictBool = False

    @property
    def message(self) -> dict[str, Any]:
        """The message of a chat."""
        text = ("Error: " if self.is_error else "") + joined(self.content)
        return {"role": "tool", "tool_call_id": self.tool_use_id, "content": text}


Content = Annotated[Part | ToolUse | ToolResult, Field(discriminator="type")]


class Turn(BaseModel, extra="forbid"):
    """A message of a conversation."""

    role: Literal["user", "assistant", "system"]
    content: StrictStr | list[Content]

    @model_validator(mode="after")
    def _calls_of_the_assistant(self) -> Turn:
        owners = {ToolUse: "assistant", ToolResult: "user"}
        for block in () if isinstance(self.content, str) else self.content:
            if self.role != (owner := owners.get(type(block), self.role)):
                raise ValueError(f"a block {block.type} belongs to a message of the {owner}")
        return self

    @property
    def chat(self) -> list[dict[str, Any]]:
        """The turn as chat messages; results of calls are separate messages and come first."""
        if isinstance(self.content, str):
            return [{"role": self.role, "content": self.content}]
        results = [block.message for block in self.content if isinstance(block, ToolResult)]
        calls = [block.call for block in self.content if isinstance(block, ToolUse)]
        texts = [block for block in self.content if isinstance(block, Part)]
        if not texts and results:
            return results
        own: dict[str, Any] = {"role": self.role, "content": joined(texts) if texts or not calls else None}
        return [*results, {**own, "tool_calls": calls} if calls else own]


class Tool(BaseModel, extra="forbid"):
    """A function that the answer may call."""

    type: Literal["custom"] | None = None
    name: StrictStr
    description: StrictStr | None = None
    input_schema: dict[str, Any]
    strict: StrictBool | None = None  # changes nothing: calls keep to their schema
    cache_control: Any = None  # nothing is cached by request

    @property
    def document(self) -> dict[str, Any]:
        """The tool as chat templates take it."""
        description = {} if self.description is None else {"description": self.description}
        return {"type": "function", "function": {"name": self.name, **description, "parameters": self.input_schema}}


class Choice(BaseModel, extra="forbid"):
    """Whether the answer calls a tool."""

    type: Literal["auto", "any", "tool", "none"]
    name: StrictStr | None = None
    disable_parallel_tool_use: StrictBool = False

    @model_validator(mode="after")
    def _names_a_tool(self) -> Choice:
        if (self.type == "tool") != (self.name is not None):
            raise ValueError('a name goes with the type "tool", and only with it')
        return self

    @property
    def document(self) -> Any:
        """The choice in OpenAI's form."""
        if self.type == "tool":
            return {"type": "function", "function": {"name": self.name}}
        return "required" if self.type == "any" else self.type


class SchemaFormat(BaseModel, extra="forbid"):
    """The JSON schema of the answer."""

    type: Literal["json_schema"]
    json_schema: dict[str, Any] = Field(alias="schema")


class OutputConfig(BaseModel, extra="forbid"):
    """The form of the answer; the effort "high" is Anthropic's default and changes nothing."""

    format: SchemaFormat | None = None
    effort: Literal["high"] | None = None


class Conversation(Body):
    """The fields that make the prompt, as `POST /v1/messages/count_tokens` takes them."""

    model: StrictStr | None = None
    messages: Annotated[list[Turn], Field(min_length=1, max_length=4096)]
    system: StrictStr | list[Part] | None = None
    tools: Annotated[list[Tool], Field(max_length=MOST_TOOLS)] | None = None
    tool_choice: Choice | None = None
    output_config: OutputConfig | None = None

    @field_validator("messages")
    @classmethod
    def _end_with_user(cls, turns: list[Turn]) -> list[Turn]:
        if turns[-1].role == "assistant":
            raise ValueError("the last message is the assistant's, which is not continued: end with the user's")
        return turns

    def as_text(self) -> ChatBody:
        return ChatBody.model_validate(self.chat())

    def chat(self) -> dict[str, Any]:
        """The conversation as the fields of a chat completion."""
        messages = [message for turn in self.messages for message in turn.chat]
        if self.system is not None:
            messages.insert(0, {"role": "system", "content": joined(self.system)})
        document: dict[str, Any] = {"model": self.model, "messages": messages}
        if self.tools:
            document["tools"] = [tool.document for tool in self.tools]
        if self.tool_choice is not None:
            document["tool_choice"] = self.tool_choice.document
            document["parallel_tool_calls"] = not self.tool_choice.disable_parallel_tool_use
        if self.output_config is not None and self.output_config.format is not None:
            named = {"name": "answer", "schema": self.output_config.format.json_schema}
            document["response_format"] = {"type": "json_schema", "json_schema": named}
        return document


class MessagesBody(Conversation, Sampled, numbers(Takes.TEXT)):  # type: ignore[misc]
    """`POST /v1/messages`."""

    max_tokens: Annotated[StrictInt, Field(ge=1)]
    stop_sequences: Annotated[list[Stop], Field(max_length=16)] | None = None
    stream: StrictBool | None = None
    n: Literal[1] | None = None

    def as_text(self) -> ChatBody:
        own = {*Conversation.model_fields, "stop_sequences"}
        shared = self.model_dump(exclude_none=True, exclude=own)
        return ChatBody.model_validate({**shared, **self.chat(), "stop": self.stop_sequences, "n": 1})


class MessagesAnswer(DeltaAnswer):
    """Writes one message."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.identifier = f"msg_{secrets.token_hex(12)}"

    def whole(self, results: Sequence[Result], echoes: Any = None) -> dict[str, Any]:
        """The answer to a request without a stream."""
        text, calls = self.read(results[0])
        content: list[dict[str, Any]] = [] if text is None else [{"type": "text", "text": text}]
        content += [_used(call) for call in calls]
        return self._message(content, self._usage(results)) | self._reason(results[0])

    def opened(self) -> list[bytes]:
        """The event before the content."""
        message = self._message([], {"input_tokens": self.prompt_tokens, "output_tokens": 0})
        return [typed({"type": "message_start", "message": message})]

    def begin_text(self) -> list[bytes]:
        block = {"type": "text", "text": ""}
        return [typed({"type": "content_block_start", "index": 0, "content_block": block})]

    def end_text(self, text: str) -> list[bytes]:
        return [typed({"type": "content_block_stop", "index": 0})]

    def write_call(self, index: int, call: dict[str, Any]) -> list[bytes]:
        block, delta = {**_used(call), "input": {}}, {"type": "input_json_delta"}
        delta["partial_json"] = call["function"]["arguments"]
        return [
            typed({"type": "content_block_start", "index": index, "content_block": block}),
            typed({"type": "content_block_delta", "index": index, "delta": delta}),
            typed({"type": "content_block_stop", "index": index}),
        ]

    def closed(self, results: Sequence[Result]) -> list[bytes]:
        """The events after the content."""
        return [
            typed({"type": "message_delta", "delta": self._reason(results[0]), "usage": self._usage(results)}),
            typed({"type": "message_stop"}),
        ]

    def failed(self, error: RequestError) -> list[bytes]:
        """The event of an error."""
        return [typed(error.messages_body)]

    def delta(self, text: str, logprobs: list[dict[str, Any]]) -> bytes:
        return typed({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}})

    def _message(self, content: list[Any], usage: dict[str, Any]) -> dict[str, Any]:
        return {
            "id": self.identifier,
            "type": "message",
            "role": "assistant",
            "model": self.name,
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }

    def _usage(self, results: Sequence[Result]) -> dict[str, Any]:
        counts = self.usage(results)
        cached = counts.pop("prompt_tokens_details")["cached_tokens"]
        prompt, completion = counts.pop("prompt_tokens"), counts.pop("completion_tokens")
        del counts["total_tokens"]
        return {
            "input_tokens": prompt - cached,
            "cache_read_input_tokens": cached,
            "cache_creation_input_tokens": 0,
            "output_tokens": completion,
            **counts,
        }

    def _call_id(self) -> str:
        return f"toolu_{secrets.token_hex(12)}"

    def _reason(self, result: Result) -> dict[str, Any]:
        if self.calls:
            return {"stop_reason": "tool_use", "stop_sequence": None}
        if finish_reason(result) == "length":
            return {"stop_reason": "max_tokens", "stop_sequence": None}
        tokens, text = result.tokens[0], text_of(result)
        stops = [self.body.stop] if isinstance(self.body.stop, str) else self.body.stop or []
        given = [stop for stop in stops if stop]
        if tokens and tokens[-1] in result.stop_ids:  # a special token, where a stop sequence names it
            found = [stop for stop in given if stop == self.tokenizer.convert_ids_to_tokens(tokens[-1])]
        else:
            rest = str(self.tokenizer.decode(tokens, skip_special_tokens=True))[len(text) :]
            found = sorted((stop for stop in given if rest.startswith(stop)), key=len)
        return {"stop_reason": "stop_sequence", "stop_sequence": found[0]} if found else _END_OF_TURN


def _used(call: dict[str, Any]) -> dict[str, Any]:
    """A call as a block of the content."""
    function = call["function"]
    return {"type": "tool_use", "id": call["id"], "name": function["name"], "input": json.loads(function["arguments"])}
