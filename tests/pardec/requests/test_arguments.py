"""The declarations of arguments, and the interfaces derived from them."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
import torch
from fastapi.testclient import TestClient

import pardec
from pardec.cli.app import command_line
from pardec.cli.options import ServedSampling
from pardec.interop.lm_eval.requests import generation
from pardec.requests.argument import Takes
from pardec.requests.settings import ARGUMENTS, Arguments, Settings
from pardec.server.app import create_app
from pardec.server.schemas import NUMBERS as FIELDS
from pardec.server.schemas import ChatBody, CompletionBody, ImageBody

NUMBERS = [name for name, each in ARGUMENTS.items() if each.number]
# A value of each argument that asks for something.
VALUES: dict[str, Any] = {
    "input_ids": [[5]], "sampler": "threshold", "max_new_tokens": 8, "min_new_tokens": 2, "block_length": 4,
    "temperature": 0.5, "top_k": 5, "top_p": 0.5, "min_p": 0.1, "repetition_penalty": 1.5, "cfg": 2.0,
    "cfg_interval": 3, "seed": 7, "template": "<mask>", "allowed": {0: [5]}, "logits_processor": [lambda i, s: s],
    "response_format": {"type": "object"}, "stop": "x", "stop_ids": [2], "block_align": "absolute", "label": 3,
    "num_images": 2, "size": (64, 64), "num_return_sequences": 2, "prompt_embeds": [], "negative_prompt": "x",
    "logprobs": 1, "logprob_ids": [5], "callback": print,
}  # fmt: skip
KINDS = [kind for kind in Takes if bin(kind.value).count("1") == 1]


def test_types_for_editors_are_those_of_the_declarations() -> None:
    assert list(Arguments.__annotations__) == list(ARGUMENTS) == list(Settings.__annotations__)
    typed = inspect.get_annotations(Settings)
    for name, kind in inspect.get_annotations(Arguments).items():
        declared = typed[name]
        assert declared in ("Any", "str") or declared == kind.__forward_arg__, name


def test_every_argument_is_in_the_docstrings() -> None:
    for method in (pardec.Model.generate, pardec.Model.stream):
        assert "{arguments}" not in (method.__doc__ or "")
        for each in ARGUMENTS.values():
            assert f"\n            {each.name}: {each.doc.split()[0]}" in (method.__doc__ or "")
        assert list(inspect.signature(method).parameters) == ["self", "prompt", *ARGUMENTS]


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_of_other_types_and_out_of_range_are_refused(name: str) -> None:
    each = ARGUMENTS[name]
    for value in (True, "1", [1], float("nan"), float("inf"), -3):
        with pytest.raises(pardec.SpecError, match=rf"^{name} (must be|is) ") as error:
            each.verify(value)
        assert error.value.hint == each.example != ""
    assert each.example.split("=")[0] == name


@pytest.mark.parametrize("value", [np.array(["auto", "none"]), torch.zeros(2), object()])
@pytest.mark.parametrize("name", ["tool_choice", "block_align"])
def test_arrays_and_objects_are_no_words(name: str, value: Any) -> None:
    with pytest.raises(pardec.SpecError, match=name):
        ARGUMENTS[name].verify(value)


@pytest.mark.parametrize("value", [np.array(["mar", "mar"]), torch.zeros(2), object(), "", 0])
@pytest.mark.parametrize("model", ["tiny-mar", "tiny-var"])
def test_a_sampler_of_images_is_a_spec(model: str, value: Any) -> None:
    with pytest.raises(pardec.SpecError):
        pardec.load(model).generate(label=1, sampler=value)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("name", VALUES)
def test_an_argument_is_refused_by_the_models_that_do_not_take_it(name: str, kind: Takes) -> None:
    Settings().check_taken("toy", kind)
    settings = Settings(**{name: VALUES[name]})
    if kind in ARGUMENTS[name].takes:
        settings.check_taken("toy", kind)
        return
    with pytest.raises(pardec.SpecError, match=rf"^{name} (is|reads|counts) .*toy") as error:
        settings.check_taken("toy", kind)
    assert error.value.hint
    assert "{" not in error.value.hint


def test_commands_have_the_options_and_their_help() -> None:
    commands: dict[str, Any] = command_line().commands  # type: ignore[attr-defined]
    for command in ("generate", "chat", "serve", "simulate", "image", "compare"):
        options = {each.name: each for each in commands[command].params}
        for name, each in ARGUMENTS.items():
            if each.option is None or each.option.alone:
                continue
            text = command in ("generate", "chat", "serve", "simulate") and bool(each.takes & Takes.TEXT)
            if text or (command == "image" and each.option.images) or (command == "compare" and each.compared):
                shown = (
                    each.option.images if command == "image" and each.option.images is not True else each.option.help
                )
                if command == "serve":
                    shown = ServedSampling.texts.get(name, shown)
                assert options[name].help == shown, (command, name)
                assert options[name].default is None


def test_requests_to_the_server_have_the_numbers_that_models_take() -> None:
    for field, each in FIELDS.items():
        for body, kinds in ((CompletionBody, Takes.TEXT), (ChatBody, Takes.TEXT), (ImageBody, Takes.IMAGES)):
            assert (field in body.model_fields) == bool(each.takes & kinds), (field, body)
    with TestClient(create_app(pardec.load("tiny-llama", device="cpu"))) as client:
        for change, says in (
            ({"temperature": -1}, "temperature must be at least 0"),
            ({"top_p": 0}, "top_p must be above 0"),
            ({"top_k": -2}, "top_k must be a whole number"),
            ({"top_k": 2.5}, "top_k"),
            ({"min_tokens": -1}, "min_tokens must be a whole number of at least 0"),
            ({"min_p": "0.1"}, "min_p"),
            ({"repetition_penalty": 0}, "repetition_penalty must be from"),
        ):
            answer = client.post("/v1/completions", json={"prompt": "Tom has 8.", "max_tokens": 2, **change})
            error = answer.json()["error"]
            assert (answer.status_code, error["param"]) == (400, next(iter(change)))
            assert says in error["message"]
        for off in (0, -1):
            body = {"prompt": "Tom has 8.", "max_tokens": 2, "top_k": off}
            assert client.post("/v1/completions", json=body).status_code == 200


def test_lm_eval_takes_what_is_declared_under_every_name() -> None:
    for name, each in ARGUMENTS.items():
        if not each.lm_eval or name == "max_new_tokens":
            continue
        for alias in (name, *each.aliases):
            assert generation({alias: VALUES[name]}, {}).arguments[name] == VALUES[name]
    assert "top_k" not in generation({"top_k": -1}, {"top_k": 5}).arguments
    assert generation({"min_tokens": 3, "min_new_tokens": 4}, {}).arguments["min_new_tokens"] == 4
