"""`POST /v1/messages` for text, in the form of Anthropic's API (https://docs.anthropic.com/en/api/messages)."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr, field_validator

from ..requests.argument import Takes
from ..result import Result
from .answers import DeltaAnswer, text_of
from .events import typed
from .schemas import ChatBody, Part, Sampled, Stop, joined, numbers

RENAMED = {"stop": "stop_sequences"}


class Turn(BaseModel):
    """A message of a conversation."""

    model_config = ConfigDict(extra="forbid")

    role: Literal["user", "assistant"]
    content: StrictStr | list[Part]


class MessagesBody(Sampled, numbers(Takes.TEXT)):  # type: ignore[misc]
    """`POST /v1/messages`."""

    messages: Annotated[list[Turn], Field(min_length=1, max_length=4096)]
    max_tokens: Annotated[StrictInt, Field(ge=1)]
    system: StrictStr | list[Part] | None = None
    stop_sequences: Annotated[list[Stop], Field(max_length=16)] | None = None
    stream: StrictBool | None = None
    n: Literal[1] | None = None

    @field_validator("messages")
    @classmethod
    def _end_with_user(cls, turns: list[Turn]) -> list[Turn]:
        if turns[-1].role == "assistant":
            raise ValueError("the last one is the assistant's, which an answer does not continue: end with the user's")
        return turns

    def as_text(self) -> ChatBody:
        messages = [{"role": turn.role, "content": joined(turn.content)} for turn in self.messages]
        if self.system is not None:
            messages.insert(0, {"role": "system", "content": joined(self.system)})
        own = {"messages", "system", "stop_sequences"}
        shared = {name: value for name, value in self.model_dump(exclude_none=True).items() if name not in own}
        return ChatBody.model_validate({**shared, "messages": messages, "stop": self.stop_sequences or None})


class MessagesAnswer(DeltaAnswer):
    """Writes one message."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.identifier = f"msg_{secrets.token_hex(12)}"

    def whole(self, results: Sequence[Result], echoes: Any = None) -> dict[str, Any]:
        """The answer to a request without a stream."""
        text, usage = text_of(results[0]), self._usage(results)
        return self._message([{"type": "text", "text": text}], usage) | self._reason(results[0])

    def opened(self) -> list[bytes]:
        """The events before the text."""
        message = self._message([], {"input_tokens": self.prompt_tokens, "output_tokens": 0})
        block = {"type": "text", "text": ""}
        return [
            typed({"type": "message_start", "message": message}),
            typed({"type": "content_block_start", "index": 0, "content_block": block}),
        ]

    def closed(self, results: Sequence[Result]) -> list[bytes]:
        """The events after the text."""
        return [
            typed({"type": "content_block_stop", "index": 0}),
            typed({"type": "message_delta", "delta": self._reason(results[0]), "usage": self._usage(results)}),
            typed({"type": "message_stop"}),
        ]

    def failed(self, error: dict[str, Any]) -> list[bytes]:
        """The event of an error."""
        return [typed(error_body(error))]

    def delta(self, text: str) -> bytes:
        """The event of a piece of text."""
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

    def _reason(self, result: Result) -> dict[str, Any]:
        if result.finish[0] == "length":
            return {"stop_reason": "max_tokens", "stop_sequence": None}
        tokens, text = result.tokens[0], text_of(result)
        if tokens and tokens[-1] in result.stop_ids:
            return {"stop_reason": "end_turn", "stop_sequence": None}
        rest = str(self.tokenizer.decode(tokens, skip_special_tokens=True))[len(text) :]
        given = [self.body.stop] if isinstance(self.body.stop, str) else self.body.stop or []
        found = next((stop for stop in given if stop and rest.startswith(stop)), None)
        return {"stop_reason": "end_turn" if found is None else "stop_sequence", "stop_sequence": found}


def error_body(error: dict[str, Any]) -> dict[str, Any]:
    """The JSON body of an error in this form, from that of OpenAI's form."""
    return {"type": "error", "error": {name: error["error"][name] for name in ("type", "message")}}
