"""Tools in `/v1/messages` and `/v1/responses`: the calls of a chat completion, in the forms of these APIs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from pardec.requests.tools import conversation
from pardec.server.messages import MessagesBody
from pardec.server.responses import ResponseBody
from tests.pardec.server.http_server import Running, serving
from tests.pardec.server.test_tools import MESSAGES, SCHEMAS, TEMPLATES, TOOLS, with_template

pytest.importorskip("openai")

SLOW = pytest.mark.slow
SAMPLING = {"temperature": 1.0, "seed": 5}
CLAUDE = [  # the names differ, the prompt does not
    {"input_schema" if name == "parameters" else name: value for name, value in tool["function"].items()}
    for tool in TOOLS
]
FLAT = [{"type": "function", **tool["function"]} for tool in TOOLS]


# The forms of calls are those of a chat, which test_tools.py tests: one of several calls, and one of a single call.
@pytest.fixture(scope="module", params=[0, pytest.param(1, marks=SLOW), 2, pytest.param(3, marks=SLOW)])
def llama(request: pytest.FixtureRequest) -> Iterator[Running]:
    with serving(with_template(TEMPLATES[request.param])) as running:
        yield running


def chat_calls(running: Running, choice: Any) -> list[tuple[str, Any]]:
    body = {"messages": MESSAGES, "tools": TOOLS, "tool_choice": choice, "max_tokens": 76, **SAMPLING}
    calls = running.post("/v1/chat/completions", body).json()["choices"][0]["message"]["tool_calls"]
    return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls]


def events_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(part.partition("data: ")[2]) for part in text.split("\n\n") if part.startswith("event: ")]


@pytest.mark.parametrize(
    ("choice", "of_chat"),
    [
        ({"type": "any"}, "required"),
        ({"type": "tool", "name": "say"}, {"type": "function", "function": {"name": "say"}}),
    ],
)
@pytest.mark.covers(1)
def test_messages_tools_are_the_calls_of_a_chat(llama: Running, choice: Any, of_chat: Any) -> None:
    body = {"messages": MESSAGES, "tools": CLAUDE, "tool_choice": choice, "max_tokens": 76, **SAMPLING}
    answer = llama.post("/v1/messages", body).json()
    expected = chat_calls(llama, of_chat)
    assert [(block["name"], block["input"]) for block in answer["content"]] == expected
    assert {block["type"] for block in answer["content"]} == {"tool_use"}
    assert all(block["id"].startswith("toolu_") for block in answer["content"])
    assert answer["stop_reason"] == "tool_use"
    for name, arguments in expected:
        jsonschema.validate(arguments, SCHEMAS[name])

    events = events_of(llama.post("/v1/messages", {**body, "stream": True}).text)
    starts = [event for event in events if event["type"] == "content_block_start"]
    assert [event["index"] for event in starts] == list(range(len(expected)))
    assert [event["content_block"]["input"] for event in starts] == [{}] * len(expected)
    deltas = [event["delta"]["partial_json"] for event in events if event["type"] == "content_block_delta"]
    names = [event["content_block"]["name"] for event in starts]
    assert list(zip(names, map(json.loads, deltas), strict=True)) == expected
    assert events[-2]["delta"]["stop_reason"] == "tool_use"


def test_responses_tools_are_the_calls_of_a_chat(llama: Running) -> None:
    arguments: dict[str, Any] = {"model": "tiny-llama", "input": MESSAGES, "tools": FLAT, "tool_choice": "required"}
    arguments |= {"max_output_tokens": 76, "temperature": 1.0, "extra_body": {"seed": 5}}
    client, expected = llama.openai().responses, chat_calls(llama, "required")
    answer = client.create(**arguments)
    assert [(item.type, item.name, json.loads(item.arguments)) for item in answer.output] == [  # type: ignore[union-attr]
        ("function_call", *call) for call in expected
    ]
    assert answer.status == "completed"
    events = list(client.create(stream=True, **arguments))
    done = [event for event in events if event.type == "response.function_call_arguments.done"]
    assert [(event.name, json.loads(event.arguments)) for event in done] == expected
    assert [event.sequence_number for event in events] == list(range(len(events)))
    last = events[-1]
    assert last.type == "response.completed"
    assert [item.type for item in last.response.output] == ["function_call"] * len(expected)
    assert [item.id for item in last.response.output] == [event.item_id for event in done]


def test_tools_leave_an_answer_in_text(llama: Running) -> None:
    """tiny-llama calls nothing by itself; a stream has the text of the whole answer."""
    body = {"messages": MESSAGES, "tools": CLAUDE, "max_tokens": 12}
    whole = llama.post("/v1/messages", body).json()
    assert [block["type"] for block in whole["content"]] == ["text"]
    assert whole["stop_reason"] in ("end_turn", "max_tokens")
    events = events_of(llama.post("/v1/messages", {**body, "stream": True}).text)
    text = "".join(event["delta"]["text"] for event in events if event["type"] == "content_block_delta")
    assert text == whole["content"][0]["text"]
    kinds = [event["type"] for event in events]
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 1
    arguments: dict[str, Any] = {"model": "tiny-llama", "input": MESSAGES, "tools": FLAT, "max_output_tokens": 12}
    answer = llama.openai().responses.create(**arguments)
    assert answer.output_text == text
    stream = list(llama.openai().responses.create(stream=True, **arguments))
    assert "".join(event.delta for event in stream if event.type == "response.output_text.delta") == text


CHAT: list[Any] = [
    *MESSAGES,
    {
        "role": "assistant",
        "content": "I add.",
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 3, "b": 4}'}}],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "SEVEN"},
    {"role": "user", "content": "Thanks"},
]


def test_earlier_calls_are_those_of_a_chat(llama: Running) -> None:
    use = {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 3, "b": 4}}
    result = {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "SEVEN"}]}
    turns = [
        *MESSAGES,
        {"role": "assistant", "content": [{"type": "text", "text": "I add."}, use]},
        {"role": "user", "content": [result, {"type": "text", "text": "Thanks"}]},
    ]
    body = MessagesBody.model_validate({"messages": turns, "tools": CLAUDE, "max_tokens": 4}).as_text()
    items = [
        *MESSAGES,
        {"role": "assistant", "content": "I add."},
        {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a": 3, "b": 4}'},
        {"type": "function_call_output", "call_id": "c1", "output": "SEVEN"},
        {"role": "user", "content": "Thanks"},
    ]
    other = ResponseBody.model_validate({"input": items, "tools": FLAT}).as_text()
    model = llama.server.model.language_model
    expected = conversation(model, CHAT, TOOLS)
    for each in (body, other):
        assert conversation(model, [message.document for message in each.messages], TOOLS) == expected
    counted = llama.post("/v1/messages/count_tokens", {"messages": turns, "tools": CLAUDE}).json()
    chat = {"messages": CHAT, "tools": TOOLS, "max_tokens": 1}
    usage = llama.post("/v1/chat/completions", chat).json()["usage"]
    assert counted == {"input_tokens": usage["prompt_tokens"]}


def test_a_failed_call_says_so() -> None:
    result = {"type": "tool_result", "tool_use_id": "c1", "content": "no such file", "is_error": True}
    body = {"messages": [{"role": "user", "content": [result]}], "max_tokens": 4}
    (message,) = MessagesBody.model_validate(body).as_text().messages
    assert (message.role, message.text) == ("tool", "Error: no such file")


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools.0.type"),
        ({"tools": CLAUDE, "tool_choice": {"type": "tool"}}, "a name goes with"),
        ({"tools": CLAUDE, "tool_choice": {"type": "tool", "name": "other"}}, "other"),
        ({"tool_choice": {"type": "any"}}, "there are no tools"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "image"),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "c", "name": "add", "input": {}}]}]},
            "belongs to a message of the assistant",
        ),
    ],
)
@pytest.mark.covers(1)
def test_messages_that_cannot_be_followed_are_refused(llama: Running, body: dict[str, Any], word: str) -> None:
    answer = llama.post("/v1/messages", {"messages": MESSAGES, "max_tokens": 76, **body})
    assert answer.status_code == 400, answer.text
    assert word in answer.json()["error"]["message"]
