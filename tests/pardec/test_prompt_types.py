"""Messages, ids and seeds in the types that other libraries give, and those that are refused."""

from __future__ import annotations

import copy
import json
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import pardec

QUESTION = "Tom has 8 cups. He loses 3. How many cups does Tom have now?"
PART = {"type": "text", "text": QUESTION}


@pytest.fixture(scope="module")
def llama() -> pardec.Model:
    return pardec.load("tiny-llama", device="cpu")


@pytest.mark.parametrize("content", [[PART], [{"type": "text", "text": QUESTION[:9]}, {"text": QUESTION[9:]}]])
def test_message_of_text_parts_is_their_text(llama: pardec.Model, content: Any) -> None:
    assert llama.generate([{"role": "user", "content": content}]).text == llama.generate(QUESTION).text


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ({"role": "user", "content": [PART, {"type": "image_url", "image_url": {"url": "a"}}]}, "not text, got [{"),
        ({"role": "user", "content": None}, "not text, got None"),
        ({"role": "user", "content": 5}, "not text, got 5"),
        ({"role": "user", "content": ""}, "shows no text of prompt 0"),
        ({"role": "system", "content": "Be brief."}, "shows no text of prompt 0"),
        ({"role": "alien", "content": QUESTION}, "shows no text of prompt 0"),
    ],
)
def test_message_that_the_model_would_not_read_is_refused(llama: pardec.Model, message: Any, said: str) -> None:
    with pytest.raises(pardec.SpecError) as caught:
        llama.generate([message])
    assert said in str(caught.value)


def test_developer_message_is_a_system_message(llama: pardec.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    template = "{% for message in messages %}{{ message['role'] + message['content'] }}{% endfor %}"
    for own, written in (("", "system"), ("{# developer #}", "developer")):
        monkeypatch.setattr(llama.tokenizer, "chat_template", own + template)
        call = llama.prepare([{"role": "developer", "content": " Tom has 8"}], max_new_tokens=1)
        text = llama.tokenizer.decode(call.request.canvases[0][: call.prompts[0]])
        assert text.replace(" ", "").endswith(f"{written}Tomhas8")


THINKING = "{% for message in messages %}{{ message['content'] }}{% endfor %}{% if not thinking %} 1{% endif %}"


def test_template_variables_reach_the_template(llama: pardec.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama.tokenizer, "chat_template", THINKING)
    chat = [{"role": "user", "content": "Tom has 8"}]
    plain = llama.generate(chat, max_new_tokens=1)
    with_variable = llama.generate(chat, max_new_tokens=1, chat_template_kwargs={"thinking": True})
    assert with_variable.prompts[0] == plain.prompts[0] - 1
    refused: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        ({"prompt": chat}, {"think": True}, "has 'think', which the chat template of tiny-llama does not use"),
        ({"prompt": chat}, {"messages": []}, "has 'messages', which"),
        ({"prompt": "Tom has 8"}, {"thinking": True}, "are for messages, and prompt 0 is text"),
        ({"input_ids": [[5]]}, {"thinking": True}, "are for messages, and no prompt is given"),
        ({"prompt": chat}, {5: True}, "must be a dict (a JSON object) of names and values"),  # type: ignore[dict-item]
    ]
    for arguments, variables, said in refused:
        with pytest.raises(pardec.SpecError) as caught:
            llama.generate(**arguments, chat_template_kwargs=variables)
        assert said in str(caught.value)


def test_ids_and_seeds_may_be_arrays(llama: pardec.Model) -> None:
    ids = llama.tokenizer(QUESTION)["input_ids"]
    plain = llama.generate(input_ids=[ids, ids], temperature=2.0, seed=[3, 4]).tokens
    for rows in (np.array([ids, ids]), np.array([ids, ids], dtype=np.uint16), [np.array(ids), torch.tensor(ids)]):
        for seed in (np.array([3, 4]), torch.tensor([3, 4]), (np.int64(3), 4)):
            assert llama.generate(input_ids=rows, temperature=2.0, seed=seed).tokens == plain
    [row] = llama.serve_batch([QUESTION], batch_size=np.int64(1))  # type: ignore[arg-type]
    assert row.text == llama.generate(QUESTION).text[0]


def test_ids_of_tokens_may_be_numbers_of_numpy(llama: pardec.Model) -> None:
    first = llama.generate(QUESTION, max_new_tokens=3, logprob_ids=[9]).tokens[0]
    number: list[Any] = [np.int64(token) for token in first]
    stopped = llama.generate(QUESTION, max_new_tokens=3, stop_ids=number[1], logprob_ids=[np.int64(9)])
    assert (stopped.tokens, stopped.stop_ids) == ([first[:2]], (first[1],))
    assert stopped.settings["logprob_ids"] == [9]
    other = llama.generate(QUESTION, max_new_tokens=1, logit_bias={number[0]: np.float32(-100)})
    assert other.tokens[0] != first[:1]
    assert json.dumps(other.settings["logit_bias"])


@pytest.mark.parametrize("ids", ["", "5", b"\x05", {5: 1}], ids=repr)
def test_ids_of_tokens_are_no_text_and_no_mapping(llama: pardec.Model, ids: Any) -> None:
    with pytest.raises(pardec.SpecError, match="stop_ids holds .* not an id"):
        llama.generate(QUESTION, stop_ids=ids)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"prompt": (text for text in [QUESTION])}, "got generator"),
        ({"prompt": np.array([QUESTION])}, "got ndarray"),
        ({"prompt": b"Tom"}, "got bytes"),
        ({"input_ids": np.array([[0.5]])}, "neither a LongTensor"),
        ({"input_ids": np.array(5)}, "input_ids has no rows"),
        ({"prompt": QUESTION, "seed": np.array([0.5])}, "a whole number, got 0.5"),
    ],
)
def test_other_types_are_refused(llama: pardec.Model, arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(pardec.SpecError) as caught:
        llama.generate(**arguments)
    assert said in str(caught.value)


@pytest.mark.parametrize("name", [None, 5, ["tiny-llama"], b"tiny-llama"])
def test_a_model_is_named_by_text_or_a_path(name: Any) -> None:
    with pytest.raises(pardec.ModelError) as caught:
        pardec.load(name)
    assert "a model is named by a text or a path" in str(caught.value)


@pytest.mark.parametrize(
    ("argument", "value"), [("dtype", None), ("dtype", np.int8), ("device", None), ("device", [0])]
)
def test_a_device_or_dtype_of_another_type_is_refused(argument: str, value: Any) -> None:
    with pytest.raises(pardec.ModelError) as caught:
        pardec.load("tiny-llama", **{argument: value})
    assert f"unknown {argument} " in str(caught.value)


def test_a_reward_that_cannot_be_called_is_refused_before_a_forward(
    llama: pardec.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pardec.Model, "generate", lambda *_, **__: pytest.fail("a forward was made"))
    with pytest.raises(pardec.SpecError) as caught:
        llama.rollouts(QUESTION, n=2, reward=5)  # type: ignore[arg-type]
    assert str(caught.value) == "reward cannot be called, got int"


def test_classes_may_be_numbers_and_arrays_of_numpy() -> None:
    mar, few = pardec.load("tiny-mar", device="cpu"), "mar:steps=2,head=5"
    assert mar.generate(label=np.int64(1), sampler=few).images == mar.generate(label=1, sampler=few).images
    one, two = (mar.generate(label=labels, sampler=few).images for labels in (np.array([1, 2]), [1, 2]))
    assert one == two


def test_a_system_message_that_the_template_leaves_out_is_told(llama: pardec.Model) -> None:
    asked = [{"role": "user", "content": "Reverse the list: 4 7 2."}]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plain = llama.generate(asked, max_new_tokens=4)
    system = {"role": "system", "content": "Answer in capitals."}
    with pytest.warns(UserWarning, match="the chat template of tiny-llama leaves a system message out"):
        assert llama.generate([system, *asked], max_new_tokens=4).tokens == plain.tokens
    showing = copy.deepcopy(llama.tokenizer)
    showing.chat_template = "{% for m in messages %}[{{ m.role }}] {{ m.content | trim }}\n{% endfor %}"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pardec.Model(replace(llama.language_model, tokenizer=showing)).prepare([system, *asked], max_new_tokens=4)
