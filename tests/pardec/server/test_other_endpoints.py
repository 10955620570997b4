"""/v1/responses, /v1/messages and /v1/embeddings; defaults of lengths and temperatures; acceptance in `usage`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import pardec
from pardec.requests.tools import HERMES, Tools
from pardec.samplers.logprobs import TokenLogprobs
from pardec.server.app import create_app
from pardec.server.body_parser import ParsedBody
from pardec.server.limits import Limits
from pardec.server.request_parser import RequestParser, TextRequest
from pardec.server.responses import ResponseAnswer
from pardec.server.schemas import ChatBody, CompletionBody
from pardec.server.token_names import TokenNames
from tests.pardec.server.http_server import Running, serving

pytest.importorskip("openai")

QUESTION = "Tom has 8 cups. He loses 3. How many cups does Tom have now?"
MESSAGES: list[Any] = [{"role": "user", "content": QUESTION}]


@pytest.fixture(scope="module")
def llama() -> Iterator[Running]:
    with serving(pardec.load("tiny-llama", device="cpu"), api_key="secret") as running:
        yield running


def generated(running: Running, **arguments: Any) -> pardec.Result:
    return running.server.model.generate(MESSAGES, **{"max_new_tokens": 20, **arguments})


def test_defaults_are_turned_off_by_a_request() -> None:
    defaults = {"top_k": 1, "stop": ["8"], "seed": 5, "temperature": 1.0}
    parser = RequestParser(pardec.load("tiny-llama", device="cpu"), ("tiny-llama",), defaults, Limits())
    for more, top_k, stops, seed in (
        ({}, 1, ["8"], 5), ({"top_k": -1}, None, ["8"], 5), ({"top_k": 0, "stop": []}, None, None, 5),
        ({"stop": ["a"], "seed": 6}, 1, ["a"], 6),
    ):  # fmt: skip
        row = parser.text(ParsedBody(CompletionBody(prompt=QUESTION, max_tokens=2, **more))).rows[0]
        assert (row.call.settings["top_k"], row.call.settings.get("stop")) == (top_k, stops)
        alone = parser.model.generate(QUESTION, seed=seed, max_new_tokens=2)
        assert list(row.call.seeds) == alone.seeds


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"cfg": 2}, "cfg is for masked models and tiny-llama is not one"),
        ({"block_length": 4}, "block_length is for masked models"),
        ({"name": ""}, "name is empty"),
        ({"name": " "}, "name is empty"),
    ],
)
def test_what_every_request_would_be_refused_for_ends_the_start(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(pardec.SpecError, match=words):
        create_app(pardec.load("tiny-llama", device="cpu"), **arguments)


def test_messages_and_responses_are_one_answer() -> None:
    with serving(pardec.load("tiny-llama", device="cpu"), num_return_sequences=3, temperature=2.0) as running:
        body: dict[str, Any] = {"messages": MESSAGES, "max_tokens": 3}
        assert len(running.post("/v1/chat/completions", {**body, "n": 1}).json()["choices"]) == 1
        assert len(running.post("/v1/chat/completions", body).json()["choices"]) == 3
        assert running.post("/v1/messages", body).json()["usage"]["output_tokens"] == 3
        assert (
            running.post("/v1/responses", {"input": QUESTION, "max_output_tokens": 3}).json()["usage"]["forwards"] == 3
        )


def test_do_sample_is_a_temperature() -> None:
    model = pardec.load("tiny-llama", device="cpu")
    for default, sample, temperature, wanted in (
        (0, True, None, 1), (0.7, True, None, 0.7), (0.7, False, None, 0), (0, True, 0.5, 0.5), (0, False, 0, 0),
    ):  # fmt: skip
        parser = RequestParser(model, ("tiny-llama",), {"temperature": default}, Limits())
        body = CompletionBody(prompt=QUESTION, max_tokens=2, do_sample=sample, temperature=temperature)
        assert parser.text(ParsedBody(body)).rows[0].call.settings["temperature"] == wanted
    parser = RequestParser(model, ("tiny-llama",), {}, Limits())
    for sample, temperature in ((False, 0.5), (True, 0)):
        body = CompletionBody(prompt=QUESTION, max_tokens=2, do_sample=sample, temperature=temperature)
        with pytest.raises(pardec.SpecError, match="do_sample"):
            parser.text(ParsedBody(body))


def test_responses_are_chat_completions_in_another_form(llama: Running) -> None:
    client = llama.openai("secret").responses
    alone = generated(llama)
    answer = client.create(model="tiny-llama", input=QUESTION, max_output_tokens=20)
    assert answer.output_text == alone.text[0]
    assert answer.status == "completed"
    assert answer.usage.input_tokens == alone.prompts[0]
    assert answer.usage.output_tokens == len(alone.tokens[0])
    turns: Any = [{"role": "developer", "content": "Be short."}, {"role": "user", "content": QUESTION}]
    assert (
        client.create(model="tiny-llama", input=turns, instructions="x", max_output_tokens=20).output_text
        == alone.text[0]
    )
    short = client.create(model="tiny-llama", input=QUESTION, max_output_tokens=1)
    assert short.status == "incomplete"
    assert short.incomplete_details.reason == "max_output_tokens"


def test_a_response_repeats_what_was_sent(llama: Running) -> None:
    client = llama.openai("secret").responses
    schema = {"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"], "additionalProperties": False}
    sent: Any = {
        "instructions": "Be short.",
        "metadata": {"run": "7"},
        "text": {"format": {"type": "json_schema", "name": "one", "schema": schema}},
    }
    answer = client.create(model="tiny-llama", input=QUESTION, max_output_tokens=40, **sent)
    assert json.loads(answer.output_text) == {"a": 1}
    stream = client.create(model="tiny-llama", input=QUESTION, max_output_tokens=40, stream=True, **sent)
    events = list(stream)
    for response in (answer, events[0].response, events[-1].response):
        shown = response.to_dict()
        assert {name: shown[name] for name in sent} == sent
    plain = client.create(model="tiny-llama", input=QUESTION, max_output_tokens=2).to_dict()
    assert (plain["instructions"], plain["metadata"], plain["text"]) == (None, {}, {"format": {"type": "text"}})


def test_a_stream_of_a_response_has_the_whole_text(llama: Running) -> None:
    events = list(
        llama.openai("secret").responses.create(model="tiny-llama", input=QUESTION, max_output_tokens=20, stream=True)
    )
    whole = generated(llama).text
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == whole[0]
    assert [event.type for event in events[:4]] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    last = events[-1]
    assert last.type == "response.completed"
    assert last.response.output_text == whole[0]


def test_responses_include_log_probabilities(llama: Running) -> None:
    """Clients ask for reasoning that a model without reasoning does not have; the others' values are a chat's."""
    include: Any = ["reasoning.encrypted_content", "message.output_text.logprobs"]
    sent: dict[str, Any] = {"model": "tiny-llama", "input": QUESTION, "max_output_tokens": 20}
    client = llama.openai("secret")
    chat = client.chat.completions.create(
        model="tiny-llama", messages=MESSAGES, max_tokens=20, logprobs=True, top_logprobs=2
    )
    expected = [entry.to_dict() for entry in chat.choices[0].logprobs.content]  # type: ignore[union-attr]
    sent["top_logprobs"] = 2

    def part(response: Any) -> list[dict[str, Any]]:
        return response.to_dict()["output"][0]["content"][0]["logprobs"]  # type: ignore[no-any-return]

    assert part(client.responses.create(**sent, include=include)) == expected
    assert part(client.responses.create(**sent)) == expected
    plain = client.responses.create(**{**sent, "top_logprobs": 0}, include=include[:1])
    assert part(plain) == []
    events = [event.to_dict() for event in client.responses.create(**sent, include=include, stream=True)]
    deltas = [each for event in events if event["type"].endswith("text.delta") for each in event["logprobs"]]
    done = next(event for event in events if event["type"] == "response.output_text.done")
    assert deltas == done["logprobs"] == expected
    assert events[-1]["response"]["output"][0]["content"][0]["logprobs"] == expected


def test_log_probabilities_of_a_response_end_before_its_calls() -> None:
    model = pardec.load("tiny-llama", device="cpu").language_model
    encode: Any = model.tokenizer
    said, call = "Let me add.", HERMES.opening + HERMES.write("add", '{"a": 3}') + HERMES.closing
    before, ids = (encode(text, add_special_tokens=False)["input_ids"] for text in (said, said + call))
    assert ids[: len(before)] == before
    names, count = TokenNames(encode, model.vocab_size), len(ids)
    request = TextRequest([], 1, [[1]], 0, names)
    answer = ResponseAnswer(ChatBody(messages=MESSAGES), request, "m", names, encode)
    answer.tools = Tools([], ("add",), required=False, parallel=True, form=HERMES)
    values = TokenLogprobs(np.zeros(count), *(np.zeros((count, 0)) for _ in range(3)))
    result: Any = SimpleNamespace(tokens=[ids], text=[said + call], logprobs=[values])
    text, calls = answer.read(result)
    assert (text, len(calls)) == (said, 1)
    assert [entry["token"] for entry in answer.logprobs] == [names.name(token) for token in before]


def test_a_response_may_ignore_end_tokens(llama: Running) -> None:
    body = {"input": QUESTION, "max_output_tokens": 40, "ignore_eos": True}
    answer = llama.post("/v1/responses", body, headers={"Authorization": "Bearer secret"}).json()
    assert answer["usage"]["output_tokens"] == 40


def test_chunks_have_the_usage_so_far_on_request(llama: Running) -> None:
    options: Any = {"include_usage": True, "continuous_usage_stats": True}
    chunks = list(
        llama.openai("secret").completions.create(
            model="tiny-llama", prompt=[QUESTION, "Reverse the list: 4 7 2."], max_tokens=6, stream=True,
            stream_options=options,
        )
    )  # fmt: skip
    counts = [chunk.usage.completion_tokens for chunk in chunks if chunk.usage is not None]
    assert len(counts) == len(chunks)
    assert counts == sorted(counts)
    assert 0 < counts[0] < counts[-2] == counts[-1]
    assert len({chunk.usage.prompt_tokens for chunk in chunks if chunk.usage is not None}) == 1


def test_fields_of_responses_are_named_as_they_were_sent(llama: Running) -> None:
    key = {"Authorization": "Bearer secret"}
    for body, param in (
        ({"input": []}, "input"),
        ({"input": "a " * 900}, "input"),
        ({"input": "a", "max_output_tokens": 10**6}, None),
        ({"input": "a", "previous_response_id": "resp_1"}, "previous_response_id"),
        ({"input": "a", "tools": [{"type": "web_search"}]}, "tools.0.type"),
    ):
        answer = llama.post("/v1/responses", body, headers=key)
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert "messages" not in error["message"]
        assert param is None or error["param"] == param


def test_messages_are_chat_completions_in_another_form(llama: Running) -> None:
    key, alone = {"x-api-key": "secret"}, generated(llama)
    body: dict[str, Any] = {"messages": MESSAGES, "max_tokens": 20, "system": [{"type": "text", "text": "Be short."}]}
    answer = llama.post("/v1/messages", body, headers=key).json()
    assert answer["type"] == "message"
    assert answer["content"] == [{"type": "text", "text": alone.text[0]}]
    assert answer["stop_reason"] == "end_turn"
    assert answer["usage"]["output_tokens"] == len(alone.tokens[0])
    short = llama.post("/v1/messages", {**body, "max_tokens": 1}, headers=key).json()
    assert short["stop_reason"] == "max_tokens"
    stop = alone.text[0][2:4]
    stopped = llama.post("/v1/messages", {**body, "stop_sequences": ["zzz", stop]}, headers=key).json()
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", stop)
    assert stopped["content"][0]["text"] == alone.text[0].split(stop)[0]
    for stops, found in ((["answer", "ans"], "ans"), (["zzz", "<eos>"], "<eos>")):  # the first that is complete
        stopped = llama.post("/v1/messages", {**body, "stop_sequences": stops}, headers=key).json()
        assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", found)


def test_a_stream_of_messages_has_the_whole_text(llama: Running) -> None:
    body = {"messages": MESSAGES, "max_tokens": 20, "stream": True}
    text = llama.post("/v1/messages", body, headers={"x-api-key": "secret"}).text
    events = [json.loads(event.partition("data: ")[2]) for event in text.split("\n\n") if event.startswith("event: ")]
    kinds = [event["type"] for event in events]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    whole = generated(llama).text
    assert "".join(event["delta"]["text"] for event in events if event["type"] == "content_block_delta") == whole[0]


def test_a_message_keeps_to_its_format(llama: Running) -> None:
    number = {"type": "integer", "minimum": 0, "maximum": 9}
    schema = {"type": "object", "properties": {"a": number}, "required": ["a"], "additionalProperties": False}
    form = {"format": {"type": "json_schema", "schema": schema}}
    body: dict[str, Any] = {"messages": MESSAGES, "output_config": form}
    key = {"x-api-key": "secret"}
    answer = llama.post("/v1/messages", {**body, "max_tokens": 30}, headers=key).json()
    chat_form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    chat_body = {"messages": MESSAGES, "max_tokens": 30, "response_format": chat_form}
    chat = llama.post("/v1/chat/completions", chat_body, headers={"Authorization": "Bearer secret"}).json()
    assert answer["content"][0]["text"] == chat["choices"][0]["message"]["content"]
    assert set(json.loads(answer["content"][0]["text"])) == {"a"}
    counted = llama.post("/v1/messages/count_tokens", body, headers=key).json()["input_tokens"]
    assert counted == answer["usage"]["input_tokens"]
    form["format"]["schema"] = {"type": "object", "properties": {"a": {"type": "date"}}}
    assert "output_config.format" in llama.post("/v1/messages", {**body, "max_tokens": 30}, headers=key).text
    refused = llama.post("/v1/messages", {**body, "max_tokens": 30, "output_config": {"effort": "low"}}, headers=key)
    assert "output_config.effort" in refused.json()["error"]["message"]


def test_messages_take_what_changes_nothing_and_messages_of_the_system(llama: Running) -> None:
    key: dict[str, str] = {"x-api-key": "secret"}
    body: dict[str, Any] = {"messages": MESSAGES, "max_tokens": 4}
    plain = llama.post("/v1/messages", body, headers=key).json()["content"]
    cached = {**body, "cache_control": {"type": "ephemeral"}}
    assert llama.post("/v1/messages", cached, headers=key).json()["content"] == plain
    turns = [{"role": "system", "content": "Be short."}, *MESSAGES]
    assert llama.post("/v1/messages", {**body, "messages": turns}, headers=key).status_code == 200
    called = {"role": "system", "content": [{"type": "tool_use", "id": "a", "name": "b", "input": {}}]}
    refused = llama.post("/v1/messages", {**body, "messages": [called, *MESSAGES]}, headers=key)
    assert "a block tool_use belongs to a message of the assistant" in refused.json()["error"]["message"]


def test_a_thread_is_refused_so_that_clients_send_the_whole_conversation(llama: Running) -> None:
    """Anthropic's tool runner goes on without a thread where it finds these details."""
    body = {"messages": MESSAGES, "max_tokens": 4, "thread": {"type": "create"}}
    answer = llama.post("/v1/messages", body, headers={"x-api-key": "secret"})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["details"] == {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    assert "nothing is stored" in error["message"]


def test_errors_of_messages_have_their_form(llama: Running) -> None:
    for body in ({"messages": MESSAGES}, {"messages": MESSAGES, "max_tokens": 4, "tools": [{"name": "x"}]}):
        answer = llama.post("/v1/messages", body, headers={"x-api-key": "secret"})
        assert answer.status_code == 400
        assert answer.json()["type"] == "error"
        assert answer.json()["error"]["type"] == "invalid_request_error"
    assert llama.post("/v1/messages", {"messages": MESSAGES, "max_tokens": 4}).status_code == 401
    wrong = {"x-api-key": "secre"}
    assert llama.post("/v1/messages", {"messages": MESSAGES, "max_tokens": 4}, headers=wrong).status_code == 401


def test_embeddings_are_refused_by_name(llama: Running) -> None:
    answer = llama.post("/v1/embeddings", {"input": "x"}, headers={"Authorization": "Bearer secret"})
    assert answer.status_code == 400
    assert "/v1/embeddings is not served" in answer.json()["error"]["message"]


def test_answers_go_to_the_end_of_the_context(llama: Running) -> None:
    client = llama.openai("secret")
    answer = client.completions.create(model="tiny-llama", prompt="Tom", extra_body={"ignore_eos": True})
    assert answer.usage.total_tokens == llama.server.model.network.max_positions
    bounds: list[tuple[dict[str, Any], int]] = [({"limits": Limits(length=40)}, 40), ({"max_new_tokens": 7}, 9)]
    for bound, total in bounds:
        with serving(pardec.load("tiny-llama", device="cpu"), **bound) as running:
            body = {"prompt": [[5, 6], [5]], "ignore_eos": True}
            usage = running.post("/v1/completions", body).json()["usage"]
            assert usage["completion_tokens"] == 2 * (total - 2)
            body |= {"stream": True}
            assert running.post("/v1/completions", body).status_code == 200


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
FUNCTION = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}


@pytest.mark.parametrize(
    ("name", "defaults", "fields", "settings"),
    [
        ("tiny-llama", {"stop": ["x"]}, {}, {"stop": ["x"]}),
        ("tiny-llama", {"stop": ["x"]}, {"stop": "y"}, {"stop": ["y"]}),
        ("tiny-llama", {"stop": ["x"], "min_new_tokens": 4}, {"response_format": SCHEMA}, {}),
        ("tiny-llama", {"stop": ["x"]}, {"response_format": {"type": "text"}}, {"stop": ["x"]}),
        ("tiny-llama", {"min_new_tokens": 40}, {"max_tokens": 2}, {"min_new_tokens": 2}),
        ("tiny-dream", {"block_length": 8}, {"max_tokens": 2}, {"block_length": 2}),
        ("tiny-dream", {"stop": ["x"]}, {"template": "<mask> <mask>"}, {}),
    ],
)
def test_defaults_give_way_to_what_a_request_asks_for(
    name: str, defaults: dict[str, Any], fields: dict[str, Any], settings: dict[str, Any]
) -> None:
    parser = RequestParser(pardec.load(name, device="cpu"), (name,), defaults, Limits())
    body = CompletionBody.model_validate({"prompt": QUESTION, "max_tokens": 30, **fields})
    found = parser.text(ParsedBody(body)).rows[0].call.settings
    names = ("stop", "min_new_tokens", *(["block_length"] if "block_length" in defaults else []))
    assert {each: found[each] for each in names if each in found} == settings


def test_defaults_give_way_to_tools_and_checks() -> None:
    defaults: dict[str, Any] = {"stop": ["x"], "min_new_tokens": 4}
    with serving(pardec.load("tiny-llama", device="cpu"), **defaults) as running:
        bodies: list[tuple[str, dict[str, Any]]] = [
            ("chat/completions", {"messages": MESSAGES, "tools": [FUNCTION], "max_tokens": 60}),
            ("chat/completions", {"messages": MESSAGES, "response_format": SCHEMA, "max_tokens": 20}),
            ("completions", {"prompt": QUESTION, "max_tokens": 0, "echo": True}),
        ]
        for path, body in bodies:
            answer = running.post(f"/v1/{path}", body)
            assert answer.status_code == 200, answer.text


def test_default_number_of_answers_counts_each_prompt_once() -> None:
    defaults: dict[str, Any] = {"num_return_sequences": 2, "temperature": 1.0}
    parser = RequestParser(pardec.load("tiny-llama", device="cpu"), ("tiny-llama",), defaults, Limits())
    request = parser.text(ParsedBody(CompletionBody.model_validate({"prompt": "Tom", "max_tokens": 2})))
    assert (request.samples, len(request.prompts), len(request.rows)) == (2, 1, 2)


def test_several_answers_are_sampled_at_temperature_1(llama: Running) -> None:
    body: dict[str, Any] = {"prompt": "Once", "n": 3, "seed": 4, "max_tokens": 12}
    key = {"Authorization": "Bearer secret"}
    found = [choice["text"] for choice in llama.post("/v1/completions", body, headers=key).json()["choices"]]
    model = llama.server.model
    assert found == model.generate("Once", num_return_sequences=3, temperature=1.0, seed=4, max_new_tokens=12).text
    assert len(set(found)) > 1


def test_usage_counts_accepted_drafts(llama: Running) -> None:
    answer = llama.openai("secret").chat.completions.create(
        model="tiny-llama", messages=MESSAGES, max_tokens=20, extra_body={"sampler": "eagle:name=tiny-llama-eagle"}
    )
    alone = generated(llama, sampler="eagle:name=tiny-llama-eagle")
    usage = answer.usage
    details = usage.completion_tokens_details
    drafted, accepted = sum(alone.trace.drafted[0]), sum(alone.trace.accepted[0])
    assert (details.accepted_prediction_tokens, details.rejected_prediction_tokens) == (accepted, drafted - accepted)
    assert usage.acceptance_rate == pytest.approx(alone.acceptance_rate)  # type: ignore[attr-defined]
    assert drafted > accepted > 0


def test_bias_and_penalties_are_those_of_generate(llama: Running) -> None:
    own: dict[str, Any] = {"presence_penalty": 1.5, "frequency_penalty": 0.5}
    plain = generated(llama)
    bias = {plain.tokens[0][0]: -100}
    answer = llama.openai("secret").chat.completions.create(
        model="tiny-llama",
        messages=MESSAGES,
        max_tokens=20,
        logit_bias={str(token): value for token, value in bias.items()},
        **own,
    )
    alone = generated(llama, logit_bias=bias, **own)
    assert answer.choices[0].message.content == alone.text[0]
    assert alone.tokens != plain.tokens


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-dream"])
def test_choices_are_those_of_the_model_and_errors_name_the_field(name: str) -> None:
    model = pardec.load(name, device="cpu")
    slots = {"number": ["5", "6 cups"], "sign": ["+", "-"]}
    with serving(model, limits=Limits(rows=8)) as running:
        body = {"prompt": [QUESTION, "Ann has 4 cups."], "slots": slots, "answer": "{sign} is {number}"}
        answer = running.post("/v1/choose", body)
        assert answer.status_code == 200
        alone = model.choose(body["prompt"], slots=slots, answer=body["answer"])
        for index, (choice, own) in enumerate(zip(answer.json()["data"], alone, strict=True)):
            assert (choice["index"], choice["best"]) == (index, own.best)
            for slot in slots:
                assert choice["probabilities"][slot] == pytest.approx(own.probabilities[slot], abs=1e-4)
        chat = running.post("/v1/choose", {"messages": MESSAGES, "slots": slots}).json()["data"][0]
        assert chat["best"] == model.choose(MESSAGES, slots=slots)[0].best
        for change, param in (
            ({"slots": {"number": ["5"]}}, "slots"),
            ({"answer": "{sing}"}, "answer"),
            ({"messages": MESSAGES}, None),
            ({"prompt": [QUESTION] * 9}, "n"),
            ({"prompt": "cup " * 10000}, "prompt"),
            ({"label": 3}, "label"),
            ({"model": "another"}, "model"),
        ):
            refused = running.post("/v1/choose", body | change)
            assert refused.status_code in (400, 404), change
            assert refused.json()["error"]["param"] == param, refused.text
