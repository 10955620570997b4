"""`POST /v1/responses` for text, read as a chat completion (https://platform.openai.com/docs/api-reference)."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, PrivateAttr, StrictBool, StrictInt, StrictStr

from ..requests.argument import Takes
from ..requests.tools import MOST_TOOLS
from ..result import Result
from .answers import DeltaAnswer, finish_reason, typed
from .errors import RequestError
from .schemas import ChatBody, Sampled, joined, numbers

RENAMED = {"messages": "input", "max_completion_tokens": "max_output_tokens", "response_format": "text.format"}
_LOGPROBS = "message.output_text.logprobs"
# What an answer may include; it has nothing of the others.
Included = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "message.input_image.image_url",
]


class InputPart(BaseModel, extra="ignore"):
    """A part of an input message."""

    type: Literal["input_text", "output_text"]
    text: StrictStr


class InputMessage(BaseModel, extra="ignore"):
    """A message of the input."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: StrictStr | list[InputPart]


class CallItem(BaseModel, extra="ignore"):
    """A call in an earlier answer."""

    type: Literal["function_call"]
    call_id: StrictStr
    name: StrictStr
    arguments: StrictStr


class CallOutput(BaseModel, extra="ignore"):
    """The result of a call."""

    type: Literal["function_call_output"]
    call_id: StrictStr
    output: StrictStr | list[InputPart]


class FunctionTool(BaseModel, extra="forbid"):
    """A function that the answer may call."""

    type: Literal["function"]
    name: StrictStr
    description: StrictStr | None = None
    parameters: dict[str, Any] | None = None
    strict: StrictBool | None = None  # changes nothing: calls keep to their schema

    @property
    def document(self) -> dict[str, Any]:
        """The tool as chat templates take it."""
        return {"type": "function", "function": self.model_dump(exclude={"type", "strict"}, exclude_none=True)}


class FunctionChoice(BaseModel, extra="forbid"):
    """The function that the answer has to call."""

    type: Literal["function"]
    name: StrictStr


class TextOptions(BaseModel, extra="forbid"):
    """The form of the text."""

    format: dict[str, Any] | None = None
    verbosity: Literal["medium"] | None = None


class ResponseChat(ChatBody):
    """A request as a chat completion, with the fields that the answer repeats."""

    _repeated: dict[str, Any] = PrivateAttr(default_factory=dict)


class ResponseBody(Sampled, numbers(Takes.TEXT)):  # type: ignore[misc]
    """`POST /v1/responses`; nothing is stored, so that a conversation is sent whole each time."""

    input: StrictStr | Annotated[list[InputMessage | CallItem | CallOutput], Field(min_length=1, max_length=4096)]
    instructions: StrictStr | None = None
    max_output_tokens: Annotated[StrictInt, Field(ge=1)] | None = None
    stream: StrictBool | None = None
    text: TextOptions | None = None
    n: Literal[1] | None = None
    store: StrictBool | None = None
    include: Annotated[list[Included], Field(max_length=64)] | None = None
    top_logprobs: Annotated[StrictInt, Field(ge=0)] | None = None
    ignore_eos: StrictBool | None = None
    tools: Annotated[list[FunctionTool], Field(max_length=MOST_TOOLS)] | None = None
    tool_choice: StrictStr | FunctionChoice | None = None
    parallel_tool_calls: StrictBool | None = None
    metadata: Annotated[dict[StrictStr, StrictStr], Field(max_length=16)] | None = None  # repeated, without an effect

    def as_text(self) -> ResponseChat:
        messages: list[dict[str, Any]] = []
        if self.instructions is not None:
            messages.append({"role": "system", "content": self.instructions})
        for item in [InputMessage(role="user", content=self.input)] if isinstance(self.input, str) else self.input:
            _add(messages, item)
        own = {
            "input",
            "instructions",
            "max_output_tokens",
            "text",
            "store",
            "tools",
            "tool_choice",
            "metadata",
            "include",
        }
        shared = {name: value for name, value in self.model_dump(exclude_none=True).items() if name not in own}
        form = None if self.text is None else self.text.format
        text = {"format": form or {"type": "text"}}
        if form is not None and form.get("type") == "json_schema":
            inner = {name: value for name, value in form.items() if name != "type"}
            form = {"type": "json_schema", "json_schema": inner}
        document = {**shared, "messages": messages, "response_format": form, "n": 1}
        if _LOGPROBS in (self.include or ()) or self.top_logprobs:
            document["logprobs"] = True
        if self.tools:
            document["tools"] = [tool.document for tool in self.tools]
        if isinstance(self.tool_choice, FunctionChoice):
            document["tool_choice"] = {"type": "function", "function": {"name": self.tool_choice.name}}
        elif self.tool_choice is not None:
            document["tool_choice"] = self.tool_choice
        chat = ResponseChat.model_validate({**document, "max_completion_tokens": self.max_output_tokens})
        chat._repeated = {"instructions": self.instructions, "text": text, "metadata": self.metadata or {}}
        return chat


def _add(messages: list[dict[str, Any]], item: InputMessage | CallItem | CallOutput) -> None:
    """Adds an item of the input to the conversation; calls belong to the assistant's message before them."""
    if isinstance(item, InputMessage):
        messages.append({"role": item.role, "content": joined(item.content)})
    elif isinstance(item, CallOutput):
        messages.append({"role": "tool", "tool_call_id": item.call_id, "content": joined(item.output)})
    else:
        if not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant", "content": None})
        function = {"name": item.name, "arguments": item.arguments}
        messages[-1].setdefault("tool_calls", []).append({"id": item.call_id, "function": function})


class ResponseAnswer(DeltaAnswer):
    """Writes one response."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.identifier, self._item = f"resp_{secrets.token_hex(16)}", f"msg_{secrets.token_hex(16)}"
        self._count = 0  # events so far
        self._ended = "in_progress"  # the status of the text

    def whole(self, results: Sequence[Result], echoes: Any = None) -> dict[str, Any]:
        """The answer to a request without a stream."""
        text, calls = self.read(results[0])
        return self._whole(text, calls, results)

    def _whole(self, text: str | None, calls: Sequence[dict[str, Any]], results: Sequence[Result]) -> dict[str, Any]:
        status = _status(results[0])
        output = [] if text is None else [self._message(text, status)]
        return self._response(status, [*output, *(_call(call) for call in calls)], results)

    def opened(self) -> list[bytes]:
        """The events before the output."""
        response = self._response("in_progress", [], None)
        return [self._event(f"response.{name}", response=response) for name in ("created", "in_progress")]

    def begin_text(self) -> list[bytes]:
        item = {**self._message("", "in_progress"), "content": []}
        return [
            self._event("response.output_item.added", output_index=0, item=item),
            self._event("response.content_part.added", **self._at, part={**self._part(""), "logprobs": []}),
        ]

    def ended(self, index: int, result: Result) -> list[bytes]:
        self._ended = _status(result)
        return super().ended(index, result)

    def end_text(self, text: str) -> list[bytes]:
        return [
            self._event("response.output_text.done", **self._at, text=text, logprobs=self.logprobs),
            self._event("response.content_part.done", **self._at, part=self._part(text)),
            self._event("response.output_item.done", output_index=0, item=self._message(text, self._ended)),
        ]

    def write_call(self, index: int, call: dict[str, Any]) -> list[bytes]:
        item = _call(call)
        at, arguments = {"item_id": item["id"], "output_index": index}, item["arguments"]
        begun = {**item, "arguments": "", "status": "in_progress"}
        return [
            self._event("response.output_item.added", output_index=index, item=begun),
            self._event("response.function_call_arguments.delta", **at, delta=arguments),
            self._event("response.function_call_arguments.done", **at, name=item["name"], arguments=arguments),
            self._event("response.output_item.done", output_index=index, item=item),
        ]

    def closed(self, results: Sequence[Result]) -> list[bytes]:
        """The event after the output."""
        response = self._whole(self.sent, self.calls, results)
        return [self._event(f"response.{response['status']}", response=response)]

    def failed(self, error: RequestError) -> list[bytes]:
        """The event of an error."""
        inner = error.body["error"]
        named = {name: inner[name] for name in ("message", "param", "code")}
        return [self._event("error", **named)]

    def delta(self, text: str, logprobs: list[dict[str, Any]]) -> bytes:
        return self._event("response.output_text.delta", **self._at, delta=text, logprobs=logprobs)

    @property
    def _at(self) -> dict[str, Any]:
        """The fields of an event that locate the text."""
        return {"item_id": self._item, "output_index": 0, "content_index": 0}

    def _event(self, kind: str, **fields: Any) -> bytes:
        self._count += 1
        return typed({"type": kind, **fields, "sequence_number": self._count - 1})

    def _message(self, text: str, status: str) -> dict[str, Any]:
        content = [self._part(text)]
        return {"type": "message", "id": self._item, "status": status, "role": "assistant", "content": content}

    def _part(self, text: str) -> dict[str, Any]:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": self.logprobs}

    def _response(self, status: str, output: list[Any], results: Sequence[Result] | None) -> dict[str, Any]:
        usage = None
        if results is not None:
            counts = self.usage(results)
            usage = {
                "input_tokens": counts.pop("prompt_tokens"),
                "input_tokens_details": counts.pop("prompt_tokens_details"),
                "output_tokens": counts.pop("completion_tokens"),
                "output_tokens_details": {"reasoning_tokens": 0, **counts.pop("completion_tokens_details", {})},
                **counts,
            }
        body = self.body
        return {
            "id": self.identifier,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "max_output_tokens": body.max_completion_tokens,
            "model": self.name,
            "output": output,
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "store": False,
            "temperature": getattr(body, "temperature", None),
            "top_p": getattr(body, "top_p", None),
            "tool_choice": _flat(body.tool_choice or "auto") if body.tools else "none",
            "tools": [_flat(tool) for tool in body.tools or ()],
            "truncation": "disabled",
            "usage": usage,
            **body._repeated,
        }


def _status(result: Result) -> str:
    return "completed" if finish_reason(result) == "stop" else "incomplete"


def _call(call: dict[str, Any]) -> dict[str, Any]:
    """A call as an item of the output."""
    identifier = call["id"].removeprefix("call_")
    item = {"type": "function_call", "id": f"fc_{identifier}", "call_id": call["id"], **call["function"]}
    return {**item, "status": "completed"}


def _flat(tool: Any) -> Any:
    """A tool, or a choice of one, without the object around the function's fields."""
    return tool if isinstance(tool, str) else {"type": "function", **tool["function"]}
