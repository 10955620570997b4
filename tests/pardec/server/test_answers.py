"""Answers of the server equal those of `generate`, in the form that OpenAI's client parses."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import random
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import jsonschema
import numpy as np
import pytest
import torch
from PIL import Image

import pardec
from pardec.api import Model
from pardec.requests.images import with_defaults
from pardec.server.answers import echo, event
from pardec.serving.running import TokenBatch
from tests.pardec.server.http_server import Running, serving

openai = pytest.importorskip("openai")

QUESTION = "Tom has 8 cups. He loses 3. How many cups does Tom have now?"


@pytest.fixture(scope="module")
def dream() -> Iterator[Running]:
    with serving(pardec.load("tiny-dream", device="cpu"), name="other-name") as running:
        yield running


@pytest.fixture(scope="module")
def llama() -> Iterator[Running]:
    with serving(pardec.load("tiny-llama", device="cpu")) as running:
        yield running


@pytest.fixture(scope="module", params=["tiny-dream", "tiny-llama"])
def both(request: pytest.FixtureRequest, dream: Running, llama: Running) -> Running:
    return dream if request.param == "tiny-dream" else llama


def model_of(running: Running) -> Model:
    return running.server.model


def prompts(count: int) -> list[str]:
    return [
        f"Tom has {at} cups. " * (1 + at % 4) + "He loses 1. How many cups does Tom have now?" for at in range(count)
    ]


def test_completions(both: Running) -> None:
    model = model_of(both)
    answer = both.openai().completions.create(model=model.name, prompt=QUESTION, max_tokens=20)
    alone = model.generate(QUESTION, max_new_tokens=20)
    assert answer.choices[0].text == alone.text[0]
    assert answer.choices[0].finish_reason == alone.finish[0]
    assert answer.usage.completion_tokens == len(alone.tokens[0])
    assert answer.usage.prompt_tokens == alone.prompts[0]
    assert answer.usage.forwards == alone.nfe[0]  # type: ignore[attr-defined]


def test_several_prompts_and_samples(both: Running) -> None:
    model = model_of(both)
    arguments: dict[str, Any] = {"temperature": 0.8, "seed": 5}
    answer = both.openai().completions.create(model=model.name, prompt=prompts(3), max_tokens=12, n=2, **arguments)
    alone = model.generate(prompts(3), max_new_tokens=12, num_return_sequences=2, **arguments)
    assert [choice.text for choice in answer.choices] == alone.text
    assert [choice.index for choice in answer.choices] == list(range(6))
    assert answer.usage.prompt_tokens == sum(alone.prompts[::2])


def test_ids_as_prompts(both: Running) -> None:
    model = model_of(both)
    ids = model.tokenizer(QUESTION)["input_ids"]
    one = both.openai().completions.create(model=model.name, prompt=ids, max_tokens=8)
    two = both.openai().completions.create(model=model.name, prompt=[ids, ids[:7]], max_tokens=8)
    alone = model.generate(input_ids=[ids, ids[:7]], max_new_tokens=8)
    assert one.choices[0].text == alone.text[0]
    assert [choice.text for choice in two.choices] == alone.text


def test_chat(both: Running) -> None:
    model = model_of(both)
    messages: Any = [{"role": "user", "content": [{"type": "text", "text": QUESTION}]}]
    answer = both.openai().chat.completions.create(model=model.name, messages=messages, max_completion_tokens=20)
    alone = model.generate([{"role": "user", "content": QUESTION}], max_new_tokens=20)
    assert answer.choices[0].message.content == alone.text[0]
    assert answer.choices[0].message.role == "assistant"


@pytest.mark.parametrize("stop", [" =", ["\n", "now", "5"]])
def test_stop(both: Running, stop: Any) -> None:
    model = model_of(both)
    answer = both.openai().completions.create(model=model.name, prompt=QUESTION, max_tokens=20, stop=stop)
    alone = model.generate(QUESTION, max_new_tokens=20, stop=stop)
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == (alone.text[0], alone.finish[0])


def test_pardecs_own_fields(llama: Running, dream: Running) -> None:
    own = {"sampler": "lookup:k=3", "min_tokens": 4, "top_k": 5, "min_p": 0.01, "repetition_penalty": 1.1}
    answer = llama.openai().completions.create(
        model="tiny-llama", prompt=QUESTION, max_tokens=9, temperature=0.7, seed=3, extra_body=own
    )
    arguments: dict[str, Any] = {"min_new_tokens": own.pop("min_tokens"), **own}
    alone = model_of(llama).generate(QUESTION, max_new_tokens=9, temperature=0.7, seed=3, **arguments)
    assert [answer.choices[0].text] == alone.text
    allowed: dict[str, Any] = {"allowed": {"0": ["4", "8"]}, "sampler": "threshold:tau=0.7", "block_length": 4}
    answer = dream.openai().completions.create(model="tiny-dream", prompt=QUESTION, max_tokens=9, extra_body=allowed)
    arguments = {**allowed, "allowed": {0: ["4", "8"]}}
    assert [answer.choices[0].text] == model_of(dream).generate(QUESTION, max_new_tokens=9, **arguments).text


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.covers(2)
def test_streams_add_up(both: Running, chat: bool, n: int) -> None:
    model, client = model_of(both), both.openai()
    arguments: dict[str, Any] = {
        "model": model.name, "max_tokens": 24, "temperature": 0.9, "seed": 11, "n": n, "stream": True, "stop": ["9"],
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    if chat:
        stream = client.chat.completions.create(messages=[{"role": "user", "content": QUESTION}], **arguments)
    else:
        stream = client.completions.create(prompt=QUESTION, **arguments)
    chunks: list[Any] = list(stream)
    asked: Any = [{"role": "user", "content": QUESTION}] if chat else QUESTION
    alone = model.generate(asked, max_new_tokens=24, temperature=0.9, seed=11, num_return_sequences=n, stop=["9"])
    texts, reasons = [""] * n, [None] * n
    for chunk in chunks[:-1]:
        (choice,) = chunk.choices
        texts[choice.index] += choice.delta.content if chat else choice.text
        reasons[choice.index] = choice.finish_reason or reasons[choice.index]
    assert texts == alone.text
    assert reasons == alone.finish
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == sum(map(len, alone.tokens))
    assert len(chunks) > n + 1 or model.family == "masked"  # which may fill all in one forward


def test_an_event_is_one_line_to_clients_that_end_lines_at_other_separators() -> None:
    document = {"text": "a\u2028b\u2029c\x85d\x0be\x1cf é"}
    lines = list(httpx.Response(200, content=event(document)).iter_lines())
    assert (json.loads(lines[0].removeprefix("data: ")), lines[1:]) == (document, [""])


def test_a_stream_shows_the_canvas_where_asked(dream: Running) -> None:
    body = {"prompt": QUESTION, "max_tokens": 16, "stream": True, "stream_options": {"include_denoise": True}}
    answer = dream.post("/v1/completions", {**body, "sampler": "fixed:steps=8", "ignore_eos": True})
    events = [event for event in answer.text.split("\n\n") if event]
    assert events[-1] == "data: [DONE]"
    canvases = [event for event in events if event.startswith("event: denoise\n")]
    states = [json.loads(event.partition("data: ")[2]) for event in canvases]
    opens = [state["denoise"]["tokens"].count(None) for state in states]
    assert opens == sorted(opens, reverse=True)
    assert opens[0] > 0
    assert all(state["choices"] == [] for state in states)
    assert [state["denoise"]["forwards"] for state in states] == list(range(1, 9))
    assert opens[-1] == 0


def test_logprobs(both: Running) -> None:
    model = model_of(both)
    client = both.openai()
    answer = client.completions.create(model=model.name, prompt=QUESTION, max_tokens=10, logprobs=3)
    alone = model.generate(QUESTION, max_new_tokens=10, logprobs=3)
    assert alone.top_logprobs is not None
    own = answer.choices[0].logprobs
    np.testing.assert_allclose(np.array(own.token_logprobs), alone.token_logprobs[0], atol=1e-5)
    assert [len(top) >= 1 for top in own.top_logprobs] == [True] * len(alone.tokens[0])
    chat = client.chat.completions.create(
        model=model.name, messages=[{"role": "user", "content": QUESTION}], max_tokens=10, logprobs=True, top_logprobs=2
    )
    asked = model.generate([{"role": "user", "content": QUESTION}], max_new_tokens=10, logprobs=2)
    content = chat.choices[0].logprobs
    np.testing.assert_allclose(
        [[top.logprob for top in token.top_logprobs] for token in content.content], asked.top_logprobs[0].top, atol=1e-5
    )


def test_logprobs_of_a_stream_are_those_of_the_whole(both: Running) -> None:
    arguments: dict[str, Any] = {
        "model": model_of(both).name,
        "messages": [{"role": "user", "content": QUESTION}],
        "max_tokens": 16,
        "logprobs": True,
        "temperature": 1.0,
        "seed": 2,
    }
    whole = both.openai().chat.completions.create(**arguments).choices[0].logprobs
    stream = both.openai().chat.completions.create(stream=True, **arguments)
    parts = [chunk.choices[0].logprobs for chunk in stream]
    tokens = [token for part in parts if part is not None for token in part.content or ()]
    assert [token.token for token in tokens] == [token.token for token in whole.content or ()]
    np.testing.assert_allclose(
        [token.logprob for token in tokens], [token.logprob for token in whole.content or ()], atol=1e-5
    )


def test_echo_scores_the_prompt(llama: Running) -> None:
    model = model_of(llama)
    answer = llama.openai().completions.create(
        model="tiny-llama", prompt=[QUESTION, "Ann has 4 cups."], max_tokens=2, echo=True, logprobs=1
    )
    for choice, text in zip(answer.choices, (QUESTION, "Ann has 4 cups."), strict=True):
        ids = pardec_ids(model, text)
        logprobs = model.logits(ids[None])[0].log_softmax(-1)
        wanted = logprobs[:-1].gather(1, ids[1:, None])[:, 0]
        own = choice.logprobs
        assert own.token_logprobs[0] is None
        np.testing.assert_allclose(np.array(own.token_logprobs[1 : len(ids)], dtype=float), wanted, atol=1e-5)
        assert len(own.token_logprobs) == len(ids) + 2
        assert choice.text.startswith(model.text(ids.tolist()) or "?")


def test_echo_lists_equally_likely_tokens_by_their_ids() -> None:
    model: Any = SimpleNamespace(logits=lambda ids: torch.zeros(*ids.shape, 17))
    logprobs = echo(model, [5, 6, 7], 2, None).logprobs
    assert logprobs.ids.tolist() == [[-1, -1], [0, 1], [0, 1]]
    np.testing.assert_allclose(logprobs.top[1:], -np.log(17), rtol=1e-6)


def test_no_new_tokens_score_the_prompt_alone(llama: Running) -> None:
    client, model = llama.openai(), model_of(llama)
    asked: dict[str, Any] = {
        "model": "tiny-llama",
        "prompt": [QUESTION, "Ann has 4 cups."],
        "echo": True,
        "logprobs": 2,
    }
    alone = client.completions.create(max_tokens=0, **asked)
    longer = client.completions.create(max_tokens=2, **asked)
    for short, long, text in zip(alone.choices, longer.choices, asked["prompt"], strict=True):
        count = len(pardec_ids(model, text))
        assert short.text == text
        assert short.finish_reason == "length"
        assert short.logprobs is not None
        assert long.logprobs is not None
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            assert getattr(short.logprobs, name) == getattr(long.logprobs, name)[:count]
    assert (alone.usage.completion_tokens, alone.usage.total_tokens) == (0, alone.usage.prompt_tokens)
    bare = client.completions.create(model="tiny-llama", prompt="Ann", max_tokens=0, n=2, logprobs=1).choices
    assert [(choice.index, choice.text) for choice in bare] == [(0, ""), (1, "")]
    assert bare[0].logprobs.tokens == []
    whole = [[5] * model.network.max_positions]  # leaves no room for a new token
    assert client.completions.create(model="tiny-llama", prompt=whole, max_tokens=0, echo=True).choices[0].text


def test_no_new_tokens_of_a_masked_model_repeat_the_prompt(dream: Running) -> None:
    answer = dream.openai().completions.create(model="tiny-dream", prompt="Ann has 4.", max_tokens=0, echo=True)
    assert answer.choices[0].text == "Ann has 4."


def test_logprob_ids_alone_report_these_and_the_own_ones(llama: Running) -> None:
    prompt = model_of(llama).tokenizer(QUESTION)["input_ids"]
    asked = {"max_tokens": 4, "logprob_ids": [5, 7]}
    alone = model_of(llama).generate(QUESTION, max_new_tokens=4, logprob_ids=[5, 7])
    wanted = alone.candidate_logprobs[0]
    (choice,) = llama.post("/v1/completions", {"prompt": QUESTION, **asked}).json()["choices"]
    np.testing.assert_allclose(choice["logprobs"]["candidates"], wanted, atol=1e-5)
    (choice,) = llama.post("/v1/completions", {"prompt": QUESTION, "echo": True, **asked}).json()["choices"]
    assert len(choice["logprobs"]["tokens"]) == len(prompt) + 4
    np.testing.assert_allclose(choice["logprobs"]["candidates"][len(prompt) :], wanted, atol=1e-5)
    chat = {"messages": [{"role": "user", "content": QUESTION}], **asked}
    (choice,) = llama.post("/v1/chat/completions", chat).json()["choices"]
    np.testing.assert_allclose([each["candidates"] for each in choice["logprobs"]["content"]], wanted, atol=1e-5)
    assert llama.post("/v1/chat/completions", {**chat, "logprobs": False}).status_code == 400


def pardec_ids(model: Model, text: str) -> Any:
    return torch.tensor(model.tokenizer(text)["input_ids"])


def test_what_an_rl_trainer_takes(both: Running) -> None:
    model = model_of(both)
    body = {
        "prompt": QUESTION, "max_tokens": 12, "temperature": 1.0, "seed": 4, "logprobs": 0, "return_token_ids": True,
    }  # fmt: skip
    (choice,) = both.post("/v1/completions", {**body, "logprob_ids": [5, 7]}).json()["choices"]
    alone = model.generate(QUESTION, max_new_tokens=12, temperature=1.0, seed=4, logprobs=0, logprob_ids=[5, 7])
    assert choice["token_ids"] == alone.tokens[0]
    assert choice["step_map"] == alone.step_map[0].tolist()
    assert choice["prompt_token_ids"] == alone.sequences[0, : alone.prompts[0]].tolist()
    np.testing.assert_allclose(choice["logprobs"]["candidates"], alone.candidate_logprobs[0], atol=1e-5)


@pytest.mark.parametrize("name", ["tiny-llamagen", "tiny-mar"])
def test_images(name: str) -> None:
    model = pardec.load(name, device="cpu")
    with serving(model) as running:
        prompt = "a small red circle on grey" if name == "tiny-llamagen" else "2"
        more: dict[str, Any] = {"seed": 3, "temperature": 1.0}
        more |= {} if name == "tiny-llamagen" else {"sampler": "mar:steps=6,head=10"}
        answer = running.openai().images.generate(model=name, prompt=prompt, n=2, extra_body=more)
        given: dict[str, Any] = {"prompt": prompt} if name == "tiny-llamagen" else {"label": 2}
        assert model.imaging is not None
        alone = model.generate(**with_defaults(model.imaging, {**given, **more}), num_images=2)
        for one, image in zip(answer.data, alone.images, strict=True):
            assert one.b64_json is not None
            drawn = Image.open(io.BytesIO(base64.b64decode(one.b64_json)))
            difference = np.abs(np.asarray(drawn, dtype=int) - np.asarray(image, dtype=int))
            assert difference.max() <= (0 if name == "tiny-llamagen" else 1)  # a batch of vectors rounds otherwise
        large = running.post("/v1/images/generations", {"prompt": prompt, "size": "10x7"})
        assert large.status_code == 400
        assert running.post("/v1/completions", {"prompt": "Tom"}).status_code == 400
        running.wait_until_idle()


def test_models_and_health(dream: Running) -> None:
    client = dream.openai()
    assert [model.id for model in client.models.list()] == ["other-name", "tiny-dream"]
    assert client.models.retrieve("tiny-dream").id == "tiny-dream"
    assert client.completions.create(model="other-name", prompt=QUESTION, max_tokens=2).model == "other-name"
    assert dream.get("/health").json()["status"] == "ok"
    for path in ("/health", "/v1/models"):
        head = httpx.head(dream.url + path)
        assert (head.status_code, head.content) == (200, b"")
    assert httpx.head(f"{dream.url}/v1/completions").status_code == 405
    report = dream.get("/metrics")
    assert "pardec_generated_tokens_total" in report.text
    assert report.headers["content-type"].startswith("text/plain")


SAMPLERS = {
    "tiny-dream": ["threshold:tau=0.8", "threshold:tau=0.7@dual", "confidence", "wino", "fixed:steps=9@prefix"],
    "tiny-llama": ["sequential", "lookup", "model:name=tiny-llama-draft,k=3", "eagle:name=tiny-llama-eagle"],
}


def test_many_clients_at_once(both: Running) -> None:
    model, order = model_of(both), random.Random(1)
    requests: list[dict[str, Any]] = [
        {
            "prompt": text,
            "max_tokens": order.choice([3, 12, 24]),
            "temperature": order.choice([0.0, 0.7, 1.0]),
            "seed": at,
            "extra_body": {"sampler": order.choice(SAMPLERS[model.name])},
        }
        for at, text in enumerate(prompts(12))
    ]

    async def all_answers() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{both.url}/v1", api_key="none", max_retries=0) as client:
            answers = (client.completions.create(model=model.name, **request) for request in requests)
            return [answer.choices[0].text for answer in await asyncio.gather(*answers)]

    texts = asyncio.run(all_answers())
    for request, text in zip(requests, texts, strict=True):
        alone = model.generate(
            request["prompt"],
            max_new_tokens=request["max_tokens"],
            temperature=request["temperature"],
            seed=request["seed"],
            **request["extra_body"],
        )
        assert [text] == alone.text, request
    both.wait_until_idle()


def test_a_request_that_cannot_join_says_that_it_waited(llama: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    body = {"prompt": QUESTION, "max_tokens": 24, "sampler": "layerskip:k=3,skip=search", "ignore_eos": True}
    original, worker, both_there = TokenBatch.advance, llama.server.worker, threading.Event()

    def advance(batch: TokenBatch) -> Any:
        """Decodes one step; the first step then waits until the other request has arrived."""
        ended, until = original(batch), time.monotonic() + 20
        while not both_there.is_set() and time.monotonic() < until:
            if worker.rows == 2:
                both_there.set()
            time.sleep(0.01)
        return ended

    monkeypatch.setattr(TokenBatch, "advance", advance)
    answers: list[httpx.Response] = []
    first = threading.Thread(target=lambda: answers.append(llama.post("/v1/completions", body)))
    first.start()
    while worker.scheduler.live == 0:
        time.sleep(0.01)
    second = llama.post("/v1/completions", {**body, "seed": 1})
    first.join(60)
    assert [answer.status_code for answer in (*answers, second)] == [200, 200]
    assert "x-pardec-waited" not in answers[0].headers
    assert "begin together" in second.headers["x-pardec-waited"]


RECORD = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
        "kind": {"enum": ["cup", "plum", "candle"]},
        "sold": {"type": "boolean"},
    },
    "required": ["name", "count", "kind", "sold"],
    "additionalProperties": False,
}


def test_structured_output(both: Running) -> None:
    model = model_of(both)
    form: Any = {"type": "json_schema", "json_schema": {"name": "record", "schema": RECORD, "strict": True}}
    for temperature in (0.0, 1.0):
        answer = both.openai().chat.completions.create(
            model=model.name,
            messages=[{"role": "user", "content": QUESTION}],
            max_tokens=96,
            temperature=temperature,
            seed=3,
            response_format=form,
        )
        text = answer.choices[0].message.content
        assert text is not None
        jsonschema.validate(json.loads(text), RECORD)
        alone = model.generate(
            [{"role": "user", "content": QUESTION}],
            max_new_tokens=96,
            temperature=temperature,
            seed=3,
            response_format=form,
        )
        assert [text] == alone.text
    refused = {**form, "json_schema": {"name": "x", "schema": {"type": "object", "properties": {"a": {"not": {}}}}}}
    body = {"prompt": QUESTION, "response_format": refused}
    assert both.post("/v1/completions", body).status_code == 400
    both.wait_until_idle()
