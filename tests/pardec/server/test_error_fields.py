"""Errors name the fields of the request, in the form of OpenAI's API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

import pardec
from pardec.server.app import create_app

LONG = "a " * 600
MESSAGES = [{"role": "user", "content": "Tom has 8."}]
COMPLETIONS: list[tuple[dict[str, Any], str | None, str | None]] = [
    ({"prompt": LONG}, "prompt", "context_length_exceeded"),
    ({"prompt": [5] * 600}, "prompt", "context_length_exceeded"),
    ({"max_tokens": 600}, "prompt", "context_length_exceeded"), ({"prompt": [10**8]}, "prompt", None),
    ({"prompt": None}, "prompt", None), ({"prompt": "  "}, "prompt", None), ({"min_tokens": 40}, "min_tokens", None),
    ({"stop_token_ids": [10**6]}, "stop_token_ids", None), ({"temperature": 1e308}, "temperature", None),
    ({"sampler": "no-such"}, "sampler", None), ({"allowed": [["no such"]]}, "allowed", None),
    ({"sampler": "lookup:k=0"}, "sampler", None), ({"sampler": "eagle"}, "sampler", None),
    ({"template": "x"}, "template", None), ({"response_format": {"type": "nothing"}}, "response_format", None),
]  # fmt: skip


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with TestClient(create_app(pardec.load("tiny-llama", device="cpu"))) as client:
        yield client


@pytest.mark.parametrize(("change", "param", "code"), COMPLETIONS)
def test_error_field_of_completions(
    client: TestClient, change: dict[str, Any], param: str | None, code: str | None
) -> None:
    error = client.post("/v1/completions", json={"prompt": "Tom has 8.", "max_tokens": 4, **change}).json()["error"]
    assert (error["param"], error["code"]) == (param, code)
    for name in ("max_new_tokens", "min_new_tokens", "stop_ids", "input_ids", "num_return", "template="):
        assert name not in error["message"]


@pytest.mark.parametrize("key", ["max_tokens", "max_completion_tokens"])
def test_error_field_of_chat(client: TestClient, key: str) -> None:
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}], key: 600}
    error = client.post("/v1/chat/completions", json=body).json()["error"]
    assert (error["param"], error["code"]) == ("messages", "context_length_exceeded")
    error = client.post("/v1/chat/completions", json={**body, key: 4, "min_tokens": 9}).json()["error"]
    assert key in error["message"]


def test_error_of_null_content(client: TestClient) -> None:
    for messages, path in (
        ([{"role": "user", "content": None}], "messages.0.content"),
        ([{"role": "user", "content": "x"}, {"role": "assistant", "content": None}], "messages.1.content"),
    ):
        error = client.post("/v1/chat/completions", json={"messages": messages}).json()["error"]
        assert error["param"] == path
        assert error["message"] == f"{path} is null: give text"


def test_error_of_message_fields(client: TestClient) -> None:
    for message, status in (
        ({"role": "user", "content": "x", "name": "Tom", "tool_calls": None, "annotations": []}, 200),
        ({"role": "user", "content": "x", "prefix": True}, 400),
        ({"role": "user"}, 400),
    ):
        body = {"messages": [message], "max_tokens": 2}
        assert client.post("/v1/chat/completions", json=body).status_code == status


def test_error_of_lengths_that_differ(client: TestClient) -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 3, "max_completion_tokens": 4}
    assert client.post("/v1/chat/completions", json=body).status_code == 400


@pytest.mark.parametrize(
    ("path", "change", "param", "said"),
    [
        ("chat/completions", {"best_off": 1}, "best_off", "there is no field 'best_off'"),
        ("chat/completions", {"functions": [{"name": "a"}]}, "functions", "functions is not supported: leave it out"),
        ("chat/completions", {"skip_special_tokens": False}, "skip_special_tokens", "is not supported: leave it out"),
        ("responses", {"previous_response_id": "a"}, "previous_response_id", "nothing is stored, send the whole"),
        ("chat/completions", {"guided_json": {}}, "guided_json", "'guided_json': response_format takes a JSON schema"),
        ("completions", {"guided_regex": "a+"}, "guided_regex", "whose strings may have a pattern"),
        ("completions", {"guided_choice": ["a"]}, "guided_choice", "may be an enum, and /v1/choose gives"),
        ("responses", {"structured_outputs": {"json": {}}}, "structured_outputs", "': text.format takes a JSON schema"),
        ("completions", {"suffix": "a"}, "suffix", "suffix is not supported: leave it out"),
    ],
)
def test_error_field_of_unsupported_fields(
    client: TestClient, path: str, change: dict[str, Any], param: str, said: str
) -> None:
    body: dict[str, Any] = {"messages": MESSAGES} if path == "chat/completions" else {"prompt": "a"}
    body = {"input": "a"} if path == "responses" else body
    error = client.post(f"/v1/{path}", json={**body, **change}).json()["error"]
    assert error["param"] == param
    assert said in error["message"]


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("messages", {"messages": MESSAGES, "max_tokens": 2, "stop": ["a"]}, "'stop': here it is stop_sequences"),
        ("responses", {"messages": MESSAGES}, "'messages': here it is input"),
        ("responses", {"input": "a", "response_format": {}}, "'response_format': here it is text.format"),
    ],
)
def test_error_of_a_field_of_another_endpoint(
    client: TestClient, path: str, body: dict[str, Any], message: str
) -> None:
    error = client.post(f"/v1/{path}", json=body).json()["error"]
    assert error["message"] == f"there is no field {message}"


@pytest.mark.parametrize(
    ("path", "body", "opening"),
    [
        ("completions", {"prompt": {"a": 1}}, "prompt: must be text; or: must be a list"),
        ("completions", {"prompt": "a", "max_tokens": "5"}, "max_tokens: must be a whole number, got '5'"),
        ("chat/completions", {"messages": MESSAGES, "max_tokens": 0}, "max_tokens: must be at least 1, got 0"),
        ("chat/completions", {"messages": MESSAGES, "stream": 1}, "stream: must be true or false, got 1"),
        ("chat/completions", {"messages": "hi"}, "messages: must be a list, got 'hi'"),
        ("chat/completions", {"messages": []}, "messages: must have at least 1 entries, and has 0"),
        ("completions", None, "the body must be a JSON object"),
        ("completions", [], "the body must be a JSON object"),
        ("chat/completions", {"messages": [{"role": "user", "content": {"type": "text"}}]}, "messages.0.content: "),
        ("messages", {"messages": MESSAGES, "max_tokens": None}, "max_tokens is null: give a value"),
        ("responses", {"input": None}, "input is null: give a value"),
    ],
)
def test_error_of_a_value_of_the_wrong_type(client: TestClient, path: str, body: Any, opening: str) -> None:
    message = client.post(f"/v1/{path}", content=json.dumps(body)).json()["error"]["message"]
    assert message.startswith(opening)
    assert "missing" not in message


def test_fields_that_request_nothing_are_ignored(client: TestClient) -> None:
    nothing = {
        "skip_special_tokens": True,
        "use_beam_search": False,
        "previous_response_id": None,
        "conversation": None,
        "audio": None,  # a null field asks for nothing, whatever its name
        "no_such_field": None,
        "cache_prompt": True,
        "best_of": 1,
    }
    part = {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}, "citations": None}
    for path, more in (("chat/completions", nothing), ("messages", {"thinking": {"type": "disabled"}})):
        body = {"messages": [{"role": "user", "content": [part]}], "max_tokens": 2, **more}
        assert client.post(f"/v1/{path}", json=body).status_code == 200


def test_error_of_a_part_with_an_unknown_field(client: TestClient) -> None:
    for path in ("chat/completions", "messages"):
        body = {"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "audio": 1}]}], "max_tokens": 2}
        message = client.post(f"/v1/{path}", json=body).json()["error"]["message"]
        assert message == "messages.0.content.0.audio is not supported: leave it out"


@pytest.mark.parametrize(
    ("path", "part", "wanted"),
    [
        ("chat/completions", {"type": "image_url", "image_url": {"url": "data:,"}}, "must be 'text'"),
        ("responses", {"type": "input_image", "image_url": "data:,"}, "must be 'input_text' or 'output_text'"),
        ("messages", {"type": "image", "source": {}}, "its type must be 'text', 'tool_use', 'tool_result'"),
    ],
)
def test_error_of_an_image_says_what_is_read(client: TestClient, path: str, part: dict[str, Any], wanted: str) -> None:
    turns = [{"role": "user", "content": [part]}]
    body = {"input": turns} if path == "responses" else {"messages": turns, "max_tokens": 3}
    message = client.post(f"/v1/{path}", json=body).json()["error"]["message"]
    assert f"{wanted} (images, audio and files are not read)" in message
    tool = {"input": "a", "tools": [{"type": "web_search"}]}
    assert "are not read" not in client.post("/v1/responses", json=tool).json()["error"]["message"]


def test_messages_end_with_the_user(client: TestClient) -> None:
    """The form's answers continue a last message of the assistant, which templates would close."""
    turns = [*MESSAGES, {"role": "assistant", "content": "8 -"}]
    answer = client.post("/v1/messages", json={"messages": turns, "max_tokens": 2})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith("messages: the last message is the assistant's")


def test_a_conversation_without_text_is_refused(client: TestClient) -> None:
    for message in ({"role": "system", "content": "Be brief."}, {"role": "user", "content": " "}):
        error = client.post("/v1/chat/completions", json={"messages": [message]}).json()["error"]
        assert error["param"] == "messages"
        assert "shows no text of messages 0" in error["message"]


def test_template_variables_of_a_request_reach_the_template(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = "{{ messages[0]['content'] }}{% if not thinking %} 1{% endif %}"
    tokenizer = client.app.state.server.model.tokenizer  # type: ignore[attr-defined]
    monkeypatch.setattr(tokenizer, "chat_template", template)
    counts = []
    for more in ({}, {"max_tokens": 4}):
        for variables in ({"thinking": True}, {}):
            body = {"messages": MESSAGES, "chat_template_kwargs": variables, **more}
            counts.append(client.post("/v1/chat/completions", json=body).json()["usage"]["prompt_tokens"])
    assert counts[0] == counts[2] == counts[1] - 1 == counts[3] - 1
    body = {"messages": MESSAGES, "chat_template_kwargs": {"enable_thinking": False}}
    error = client.post("/v1/chat/completions", json=body).json()["error"]
    assert (error["param"], "'enable_thinking'" in error["message"]) == ("chat_template_kwargs", True)


def test_the_name_of_a_message_reaches_the_template(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    template = "{{ messages[0]['name'] }} {{ messages[0]['content'] }}"
    tokenizer = client.app.state.server.model.tokenizer  # type: ignore[attr-defined]
    monkeypatch.setattr(tokenizer, "chat_template", template)
    counts = []
    for name in ("Tom", "Tom has"):
        body = {"messages": [{**MESSAGES[0], "name": name}], "max_tokens": 2}
        counts.append(client.post("/v1/chat/completions", json=body).json()["usage"]["prompt_tokens"])
    assert counts[1] == counts[0] + 1


@pytest.mark.parametrize("field", ["logit_bias", "allowed"])
def test_error_of_two_names_of_one_number(client: TestClient, field: str) -> None:
    value = {"logit_bias": 1, "allowed": [5]}[field]
    for key in ("05", "\u0665", "+5", ""):
        error = client.post("/v1/completions", json={"prompt": "Tom", "max_tokens": 9, field: {"5": value, key: value}})
        assert error.json()["error"]["param"] == field


def test_error_of_a_field_that_stands_twice(client: TestClient) -> None:
    body = b'{"prompt": "Tom has 8.", "max_tokens": 2, "temperature": 0, "temperature": 2}'
    answer = client.post("/v1/completions", content=body)
    assert answer.status_code == 400
    assert "'temperature' twice" in answer.json()["error"]["message"]
