"""A complete JSON answer finishes with "stop", as OpenAI's client requires to parse it."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

import pardec
from tests.pardec.server.http_server import serving


class Cups(BaseModel):
    model_config = ConfigDict(extra="forbid")
    a: int
    b: str


SLOW = pytest.mark.slow
MESSAGES: Any = [{"role": "user", "content": "Tom has 8 cups. He loses 3. How many cups does Tom have now?"}]


@pytest.mark.parametrize(
    "name", ["tiny-llama", "tiny-dream", *(pytest.param(f"tiny-{one}", marks=SLOW) for one in ("llada", "nemotron"))]
)
def test_json_finish_is_stop(name: str) -> None:
    model = pardec.load(name, device="cpu")
    with serving(model) as running:
        client = running.openai()
        answer = client.chat.completions.parse(model=name, messages=MESSAGES, max_tokens=48, response_format=Cups)
        assert isinstance(answer.choices[0].message.parsed, Cups)
        with client.chat.completions.stream(
            model=name, messages=MESSAGES, max_tokens=48, response_format=Cups
        ) as stream:
            last = stream.get_final_completion()
        assert last.choices[0].finish_reason == "stop"
        assert last.choices[0].message.parsed == answer.choices[0].message.parsed


@pytest.mark.parametrize(("tokens", "reason"), [(16, "stop"), (8, "length")])
def test_finish_of_a_canvas_that_is_filled_after_the_end(tokens: int, reason: str) -> None:
    """The answer has 8 tokens and an end token; the sampler has no `eos`."""
    with serving(pardec.load("tiny-dream", device="cpu")) as running:
        body = {"max_tokens": tokens, "sampler": "sequential"}
        (choice,) = running.post("/v1/completions", {"prompt": MESSAGES[0]["content"], **body}).json()["choices"]
        assert choice["finish_reason"] == reason
        message = running.post("/v1/messages", {"messages": MESSAGES, **body}).json()
        assert message["stop_reason"] == {"stop": "end_turn", "length": "max_tokens"}[reason]
        body["max_output_tokens"] = body.pop("max_tokens")
        answer = running.post("/v1/responses", {"input": MESSAGES, **body}).json()
        assert answer["status"] == {"stop": "completed", "length": "incomplete"}[reason]
        client = running.openai().chat.completions
        *_, last = client.create(
            model="tiny-dream", messages=MESSAGES, max_tokens=tokens, stream=True, extra_body={"sampler": "sequential"}
        )
        assert last.choices[0].finish_reason == reason


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-dream"])
@pytest.mark.parametrize("schema", [{"type": "integer"}, {"type": "string"}, {"enum": ["x", "yes"]}])
def test_json_finish_of_one_value(name: str, schema: dict[str, Any]) -> None:
    """A number can always be continued, so it counts as complete at the end of the budget."""
    model = pardec.load(name, device="cpu")
    result = model.generate("Tom has 8 cups.", max_new_tokens=8, response_format=schema)
    assert result.finish == ["stop"]
    plain = model.generate("Tom has 8 cups.", max_new_tokens=2, stop_ids=[])
    assert plain.finish == ["length"]
