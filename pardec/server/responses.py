"""`POST /v1/responses` for text: the body as one of a chat, and its answers (https://platform.openai.com/docs/api-reference)."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr

from ..requests.argument import Takes
from ..result import Result
from .answers import DeltaAnswer, text_of
from .events import typed
from .schemas import ChatBody, Sampled, joined, numbers

RENAMED = {"messages": "input", "max_completion_tokens": "max_output_tokens", "response_format": "text.format"}


class InputPart(BaseModel):
    """A part of an input message."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["input_text", "output_text"]
    text: StrictStr


class InputMessage(BaseModel):
    """A message of the input."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: StrictStr | list[InputPart]


class TextOptions(BaseModel):
    """The form of the text."""

    model_config = ConfigDict(extra="forbid")

    format: dict[str, Any] | None = None
    verbosity: Literal["medium"] | None = None


class ResponseBody(Sampled, numbers(Takes.TEXT)):  # type: ignore[misc]
    """`POST /v1/responses`; nothing is stored, so that a conversation is sent whole each time."""

    input: StrictStr | Annotated[list[InputMessage], Field(min_length=1, max_length=4096)]
    instructions: StrictStr | None = None
    max_output_tokens: Annotated[StrictInt, Field(ge=1)] | None = None
    stream: StrictBool | None = None
    text: TextOptions | None = None
    n: Literal[1] | None = None
    store: StrictBool | None = None

    def as_text(self) -> ChatBody:
        messages = [] if self.instructions is None else [{"role": "system", "content": self.instructions}]
        for item in [InputMessage(role="user", content=self.input)] if isinstance(self.input, str) else self.input:
            messages.append({"role": item.role, "content": joined(item.content)})
        own = {"input", "instructions", "max_output_tokens", "text", "store"}
        shared = {name: value for name, value in self.model_dump(exclude_none=True).items() if name not in own}
        form = None if self.text is None else self.text.format
        if form is not None and form.get("type") == "json_schema":
            inner = {name: value for name, value in form.items() if name != "type"}
            form = {"type": "json_schema", "json_schema": inner}
        document = {**shared, "messages": messages, "response_format": form}
        return ChatBody.model_validate({**document, "max_completion_tokens": self.max_output_tokens})


class ResponseAnswer(DeltaAnswer):
    """Writes one response."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.identifier, self._item = f"resp_{secrets.token_hex(16)}", f"msg_{secrets.token_hex(16)}"
        self._count = 0  # events so far

    def whole(self, results: Sequence[Result], echoes: Any = None) -> dict[str, Any]:
        """The answer to a request without a stream."""
        done = results[0].finish[0] == "stop"
        output = [self._message(text_of(results[0]), "completed" if done else "incomplete")]
        return self._response("completed" if done else "incomplete", output, results)

    def opened(self) -> list[bytes]:
        """The events before the text."""
        response = self._response("in_progress", [], None)
        part = {"item_id": self._item, "output_index": 0, "content_index": 0, "part": _part("")}
        return [
            self._event("response.created", response=response),
            self._event("response.in_progress", response=response),
            self._event(
                "response.output_item.added", output_index=0, item={**self._message("", "in_progress"), "content": []}
            ),
            self._event("response.content_part.added", **part),
        ]

    def closed(self, results: Sequence[Result]) -> list[bytes]:
        """The events after the text."""
        response = self.whole(results)
        at = {"item_id": self._item, "output_index": 0, "content_index": 0}
        item = response["output"][0]
        return [
            self._event("response.output_text.done", **at, text=self.sent, logprobs=[]),
            self._event("response.content_part.done", **at, part=_part(self.sent)),
            self._event("response.output_item.done", output_index=0, item=item),
            self._event(f"response.{response['status']}", response=response),
        ]

    def failed(self, error: dict[str, Any]) -> list[bytes]:
        """The event of an error."""
        inner = error["error"]
        named = {name: inner[name] for name in ("message", "param", "code")}
        return [self._event("error", **named)]

    def delta(self, text: str) -> bytes:
        """The event of a piece of text."""
        at = {"item_id": self._item, "output_index": 0, "content_index": 0}
        return self._event("response.output_text.delta", **at, delta=text, logprobs=[])

    def _event(self, kind: str, **fields: Any) -> bytes:
        self._count += 1
        return typed({"type": kind, **fields, "sequence_number": self._count - 1})

    def _message(self, text: str, status: str) -> dict[str, Any]:
        return {"type": "message", "id": self._item, "status": status, "role": "assistant", "content": [_part(text)]}

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
            "instructions": None,
            "max_output_tokens": body.max_completion_tokens,
            "model": self.name,
            "output": output,
            "parallel_tool_calls": True,
            "previous_response_id": None,
            "store": False,
            "temperature": getattr(body, "temperature", None),
            "top_p": getattr(body, "top_p", None),
            "text": {"format": {"type": "text"}},
            "tool_choice": "none",
            "tools": [],
            "truncation": "disabled",
            "usage": usage,
            "metadata": {},
        }


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
