"""Tools: calls in the chat template's form, held to the schema of their parameters, whole and streamed."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import numpy as np
import pytest

import pardec
from pardec.requests import tools as reading
from pardec.requests.settings import Settings
from pardec.requests.stop_strings import StructuredStops
from pardec.requests.structured.call_grammar import CallGrammar
from pardec.requests.structured.vocabulary import Vocabulary
from pardec.requests.tools import HERMES, CallForm, conversation, form_of, tools_of
from tests.pardec.server.http_server import Running, serving

pytest.importorskip("openai")

NUMBER = {"type": "integer", "minimum": 0, "maximum": 99}
ADD = {"type": "object", "properties": {"a": NUMBER, "b": NUMBER}, "required": ["a", "b"]}
SAY = {"type": "object", "properties": {"text": {"type": "string", "maxLength": 8}}, "required": ["text"]}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "add", "description": "Adds", "parameters": ADD}},
    {"type": "function", "function": {"name": "say", "parameters": SAY}},
]
SCHEMAS = {"add": ADD, "say": SAY}
MESSAGES: list[Any] = [{"role": "user", "content": "What is 3 + 4?"}]

# The forms of calls of widespread templates, with tools shown in the shortest way.
SHOW = "{% if tools %}{{ tools | tojson }}{% endif %}"
CALLS = "{% for c in m.tool_calls %}{% set f = c.function %}"
HERMES_TEMPLATE = SHOW + (
    "{% for m in messages %}{% if m.tool_calls %}{{ m.content }}" + CALLS + "{{ '\\n' if not loop.first }}"
    '{{ \'<tool_call>\\n{"name": "\' + f.name + \'", "arguments": \' }}{{ f.arguments | tojson }}'
    "{{ '}\\n</tool_call>' }}{% endfor %}{{ eos_token }}{% else %}[{{ m.role }}] {{ m.content }}{% endif %}{% endfor %}"
)
LLAMA_TEMPLATE = SHOW + (
    "{% for m in messages %}{% if m.tool_calls %}{% if m.tool_calls | length > 1 %}{{ raise_exception('one call') }}"
    '{% endif %}{% set f = m.tool_calls[0].function %}{"name": "{{ f.name }}", "parameters": '
    "{{ f.arguments | tojson }}}{{ eos_token }}{% else %}[{{ m.role }}] {{ m.content }}{% endif %}{% endfor %}"
)
MISTRAL_TEMPLATE = SHOW + (
    "{% for m in messages %}{% if m.tool_calls %}[TOOL_CALLS] [" + CALLS + '{"name": "{{ f.name }}", "arguments": '
    '{{ f.arguments | tojson }}, "id": "{{ c.id }}"}{{ \', \' if not loop.last }}{% endfor %}]{{ eos_token }}'
    "{% else %}[{{ m.role }}] {{ m.content }}{% endif %}{% endfor %}"
)
XML_TEMPLATE = SHOW + (
    "{% for m in messages %}{% if m.tool_calls %}" + CALLS + "<function={{ f.name }}>{% endfor %}"
    "{% else %}{{ m.content }}{% endif %}{% endfor %}"
)
FORMS = {
    HERMES_TEMPLATE: CallForm(HERMES.opening, HERMES.head, HERMES.middle, "}", HERMES.between, HERMES.closing),
    LLAMA_TEMPLATE: CallForm("", '{"name": "', '", "parameters": ', "}", None, ""),
    MISTRAL_TEMPLATE: CallForm("[TOOL_CALLS] [", '{"name": "', '", "arguments": ', ', "id": "call00000"}', ", ", "]"),
}
TEMPLATES = ["", *FORMS]


def with_template(template: str) -> pardec.Model:
    """tiny-llama with this chat template; its own, which shows no tools, without one."""
    model = pardec.load("tiny-llama", device="cpu")
    model.network.tokenizer = copy.deepcopy(model.tokenizer)
    if template:
        model.tokenizer.chat_template = template
    return model


@pytest.fixture(scope="module", params=range(len(TEMPLATES)), ids=["own", "hermes", "llama", "mistral"])
def llama(request: pytest.FixtureRequest) -> Iterator[Running]:
    with serving(with_template(TEMPLATES[request.param])) as running:
        yield running


def check(calls: Any) -> list[tuple[str, Any]]:
    """The calls, each valid by its schema."""
    each = [(call.function.name, json.loads(call.function.arguments)) for call in calls or ()]
    for name, arguments in each:
        jsonschema.validate(arguments, SCHEMAS[name])
    return each


@pytest.mark.parametrize("template", FORMS, ids=["hermes", "llama", "mistral"])
def test_form_is_read_from_the_template(template: str) -> None:
    model = with_template(template).language_model
    form = form_of(model)
    assert form == FORMS[template]
    objects = [form.write("add", '{"a": 1, "b": 2}'), form.write("say", '{"text": "{"}')][
        : 1 + (form.between is not None)
    ]
    before = "" if form.starts_answer else "I add.\n"
    text = before + form.opening + (form.between or "").join(objects) + form.closing
    expected = [("add", '{"a": 1, "b": 2}'), ("say", '{"text": "{"}')][: len(objects)]
    assert form.read(text) == (before, expected)
    assert form.read("no call") == ("no call", [])


def test_other_forms_are_refused() -> None:
    model = with_template(XML_TEMPLATE)
    with pytest.raises(pardec.SpecError, match="another form than JSON objects"):
        model.generate(MESSAGES, tools=TOOLS, max_new_tokens=8)
    silent = with_template("nothing")
    with pytest.raises(pardec.SpecError, match="shows no tools"):
        silent.generate(MESSAGES, tools=TOOLS, max_new_tokens=8)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "say"}}])
@pytest.mark.parametrize("more", [{}, {"temperature": 1.3, "seed": 4}, {"extra_body": {"sampler": "lookup"}}])
@pytest.mark.covers(1)
def test_required_calls_keep_to_their_schema(llama: Running, choice: Any, more: dict[str, Any]) -> None:
    answer = llama.openai().chat.completions.create(
        model="tiny-llama", messages=MESSAGES, tools=TOOLS, tool_choice=choice, max_tokens=76, **more
    )
    (chosen,) = answer.choices
    calls = check(chosen.message.tool_calls)
    assert calls
    assert chosen.finish_reason == "tool_calls"
    assert chosen.message.content is None
    assert all(call.id.startswith("call_") for call in chosen.message.tool_calls or ())
    if choice != "required":
        assert [name for name, _ in calls] == ["say"]


def test_streams_have_the_calls_of_whole_answers(llama: Running) -> None:
    arguments: dict[str, Any] = {
        "model": "tiny-llama", "messages": MESSAGES, "tools": TOOLS, "tool_choice": "required", "max_tokens": 76,
        "temperature": 1.0, "seed": 5,
    }  # fmt: skip
    whole = llama.openai().chat.completions.create(**arguments).choices[0]
    chunks = list(llama.openai().chat.completions.create(stream=True, **arguments))
    deltas = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()]
    assert check(deltas) == check(whole.message.tool_calls)
    assert [call.index for call in deltas] == list(range(len(deltas)))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == ""
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_auto_answers_in_text_where_the_model_does(llama: Running) -> None:
    """tiny-llama calls nothing by itself; its answer is the one without the grammar."""
    arguments: dict[str, Any] = {"model": "tiny-llama", "messages": MESSAGES, "max_tokens": 12, "tools": TOOLS}
    answer = llama.openai().chat.completions.create(**arguments).choices[0]
    chunks = list(llama.openai().chat.completions.create(stream=True, **arguments))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == answer.message.content
    assert answer.message.tool_calls is None
    assert answer.finish_reason in ("stop", "length")


def test_results_of_calls_reach_the_model(llama: Running) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 3, "b": 4}'}}
    messages = [*MESSAGES, {"role": "assistant", "content": None, "tool_calls": [call]}]
    messages += [{"role": "tool", "tool_call_id": "call_1", "content": "SEVEN"}]
    model = llama.server.model.language_model
    made, shown = conversation(model, messages, TOOLS)
    if form_of(model).shown:
        assert shown == TOOLS
        assert made[1]["tool_calls"][0]["function"]["arguments"] == {"a": 3, "b": 4}
    else:
        assert "SEVEN" in made[-1]["content"]
        assert '"name": "add"' in made[-1]["content"]  # this template shows the last user message alone
    body = {"messages": messages, "tools": TOOLS, "max_tokens": 4}
    assert llama.post("/v1/chat/completions", body).status_code == 200
    call["function"]["arguments"] = "{"  # type: ignore[index]
    refused = llama.post("/v1/chat/completions", body)
    assert refused.status_code == 400
    assert "not a JSON object" in refused.json()["error"]["message"]


@pytest.mark.parametrize("text", ['{"a": 1e400}', '{"a": NaN}', '{"a": 1, "a": 2}', '{"a": "\\ud83d"}', "[" * 50_000])
def test_arguments_that_no_prompt_can_repeat_are_refused(text: str) -> None:
    """Python reads a large number as infinity, takes the last of equal keys, and fails at deep nesting."""
    call = {"type": "function", "function": {"name": "add", "arguments": text}}
    messages = [*MESSAGES, {"role": "assistant", "content": None, "tool_calls": [call]}]
    with pytest.raises(pardec.SpecError, match="the arguments of a tool call in messages are not a JSON object: "):
        conversation(with_template(HERMES_TEMPLATE).language_model, messages, TOOLS)


def test_stop_strings_end_the_text_before_a_call(llama: Running) -> None:
    """Agents send them beside tools: they end text, and never cut a call."""
    arguments: dict[str, Any] = {
        "model": "tiny-llama", "messages": MESSAGES, "tools": TOOLS, "max_tokens": 76, "temperature": 1.5, "seed": 4,
        "extra_body": {"ignore_eos": True},
    }  # fmt: skip
    create = llama.openai().chat.completions.create
    plain = create(**arguments).choices[0].message.content or ""
    assert len(plain) > 4
    stop = plain[2:4]
    more = {**arguments, "stop": [stop]}
    stopped = create(**more).choices[0]
    assert (stopped.message.content, stopped.finish_reason) == (plain[: plain.index(stop)], "stop")
    assert "".join(c.choices[0].delta.content or "" for c in create(stream=True, **more)) == stopped.message.content
    whole = create(tool_choice="required", **arguments).choices[0].message
    held = create(tool_choice="required", stop=['"', "a", "{"], **arguments).choices[0].message
    assert check(held.tool_calls) == check(whole.tool_calls) != []


@pytest.mark.parametrize("form", FORMS.values(), ids=["hermes", "llama", "mistral"])
def test_a_stop_string_counts_up_to_where_a_call_begins(form: CallForm, monkeypatch: pytest.MonkeyPatch) -> None:
    made = grammar(form, monkeypatch)
    before = made.vocabulary.encode("" if form.starts_answer else "Yes. ")
    begun = before + made.vocabulary.encode(form.trigger)
    ids = begun + made.vocabulary.encode(form.lead + "add")
    stops = StructuredStops(made.vocabulary.tokenizer, ("add", "es"), grammar=made)
    assert stops.first(begun) == stops.first(ids) == (None if form.starts_answer else stops.first(before))
    assert (stops.first(ids) is None) == form.starts_answer
    assert stops.cut_row("Yes. add", ids) == ("Yes. add" if form.starts_answer else "Y")
    assert stops.first(made.vocabulary.encode("then add")) is not None


def grammar(form: CallForm, monkeypatch: pytest.MonkeyPatch, choice: str = "auto", budget: int = 100) -> CallGrammar:
    model = pardec.load("tiny-llama", device="cpu").language_model
    monkeypatch.setattr(reading, "form_of", lambda _: form)
    tools = tools_of(model, Settings.of({"tools": TOOLS, "tool_choice": choice}))
    assert tools is not None
    return CallGrammar(tools, Vocabulary.of(model.tokenizer, model.vocab_size), budget, [3])


@pytest.mark.parametrize("form", FORMS.values(), ids=["hermes", "llama", "mistral"])
def test_a_begun_call_ends_within_the_budget(form: CallForm, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random allowed tokens after the trigger give a call that is whole, whatever was written before it."""
    for seed in range(6):
        order, budget = np.random.default_rng(seed), 100
        made = grammar(form, monkeypatch, budget=budget)
        before = "" if form.starts_answer else "Yes. "
        ids = made.vocabulary.encode(before + form.trigger)
        assert made.mask(ids[:-1])[ids[-1]]
        while made.first(ids) is None:
            assert len(ids) < budget
            allowed = np.flatnonzero(made.mask(ids))
            ids.append(int(order.choice(allowed)))
            if ids[-1] == 3:
                ids.pop()
                break
        ended = made.first(ids)
        assert ended in (None, len(ids))
        assert made.first(ids, len(ids) - 1) == ended
        text = b"".join(made.vocabulary.tokens[token] for token in ids).decode()
        content, calls = form.read(text)
        assert content == before
        assert calls
        for name, arguments in calls:
            jsonschema.validate(json.loads(arguments), SCHEMAS[name])
        assert text.endswith(form.closing)


def test_a_token_may_complete_the_trigger_and_begin_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    made = grammar(HERMES, monkeypatch)
    letter, wrong = made.vocabulary.ids[b"Q"], made.vocabulary.ids[b"X"]
    made.texts = list(made.texts)
    made.texts[letter], made.texts[wrong] = b'>\n{"', b"> {"  # as merges of a larger vocabulary
    ids = made.vocabulary.encode("<tool_call")
    mask = made.mask(ids)
    assert mask[letter]
    assert not mask[wrong]
    after = made.mask([*ids, letter])
    assert {made.texts[token][:1] for token in np.flatnonzero(after)} == {b"n"}


def test_a_call_that_does_not_fit_does_not_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    made = grammar(HERMES, monkeypatch, budget=30)
    ids = made.vocabulary.encode("<tool_call")
    closing = made.vocabulary.ids[b">"]
    assert not made.mask(ids)[closing]
    assert made.mask(ids).sum() >= len(made.vocabulary) - 10
    with pytest.raises(pardec.SpecError, match="too few for a call"):
        grammar(HERMES, monkeypatch, "required", budget=30)


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({"tools": [{"type": "web"}]}, "tools[0] is not a function"),
        ({"tools": [*TOOLS, TOOLS[0]]}, "the name 'add' twice"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "no name of letters"),
        ({"tools": TOOLS, "tool_choice": "always"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "no"}}}, "not among the tools"),
        ({"tool_choice": "required"}, "there are no tools"),
        ({"tools": TOOLS, "response_format": {"type": "json_object"}}, "response_format cannot be combined with tools"),
        ({"tools": TOOLS, "tool_choice": "required", "max_tokens": 5}, "too few for a call"),
    ],
)
@pytest.mark.covers(1)
def test_requests_that_cannot_work_are_refused(llama: Running, body: dict[str, Any], word: str) -> None:
    answer = llama.post("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 60, **body})
    assert answer.status_code == 400
    assert word in answer.json()["error"]["message"]


def test_unsupported_parameters_are_named(llama: Running) -> None:
    bad = {"type": "object", "properties": {"x": {"not": {}}}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": bad}}]
    answer = llama.post("/v1/chat/completions", {"messages": MESSAGES, "tools": tools})
    assert answer.status_code == 400
    assert "tools: the parameters of f at #/properties/x" in answer.json()["error"]["message"]


WHOLE = {"type": "object", "properties": {"a": NUMBER}, "required": ["a"], "additionalProperties": False}
NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}


@pytest.mark.parametrize(
    ("parameters", "schema"),
    [
        *((one, one) for one in ({"type": "object", "additionalProperties": NUMBER}, {"additionalProperties": True})),
        *((one, one) for one in ({"properties": {}, "required": ["x"]}, {"anyOf": [WHOLE]}, {"minProperties": 1})),
        ({"$ref": "#/$defs/A", "$defs": {"A": WHOLE}},) * 2,
        *((one, NO_ARGUMENTS) for one in (None, {}, {"type": "object", "title": "F", "$defs": {"A": WHOLE}})),
        *((one, NO_ARGUMENTS) for one in ({"properties": {}, "required": []}, NO_ARGUMENTS)),
    ],
)
def test_parameters_without_properties_may_have_arguments(parameters: Any, schema: dict[str, Any]) -> None:
    function = {"name": "f"} if parameters is None else {"name": "f", "parameters": parameters}
    model = pardec.load("tiny-llama", device="cpu").language_model
    tools = tools_of(model, Settings.of({"tools": [_function(function)]}))
    assert tools.parameters == {"f": schema}


def _function(function: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": function}


def test_masked_models_need_a_template() -> None:
    with serving(pardec.load("tiny-dream", device="cpu")) as dream:
        body: dict[str, Any] = {"messages": MESSAGES, "tools": TOOLS[:1]}
        refused = dream.post("/v1/chat/completions", body)
        assert refused.status_code == 400
        assert "tiny-dream, which is masked" in refused.json()["error"]["message"]
        assert dream.post("/v1/chat/completions", {**body, "tool_choice": "none"}).status_code == 200
        tokenizer = dream.server.model.tokenizer
        call = HERMES.opening + HERMES.write("add", '{"a": 3, "b": @}') + HERMES.closing
        before, after = call.split("@")
        encode = dream.server.model.language_model.tokenizer
        ids = [*encode(before, add_special_tokens=False)["input_ids"], None]
        ids += encode(after, add_special_tokens=False)["input_ids"]
        at = str(ids.index(None))
        answer = dream.post("/v1/chat/completions", {**body, "template": ids, "allowed": {at: ["4"]}})
        assert answer.status_code == 400  # `allowed` and tools decide about the same positions
        answer = dream.post("/v1/chat/completions", {**body, "template": ids})
        assert answer.status_code == 200, answer.text
        assert tokenizer is not None
        (choice,) = answer.json()["choices"]
        text = choice["message"]["content"] or json.dumps(choice["message"].get("tool_calls"))
        assert "add" in text


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_result_has_its_calls_as_values(template: str, tmp_path: Any) -> None:
    model = with_template(template)
    result = model.generate([MESSAGES, MESSAGES], tools=TOOLS, tool_choice="required", max_new_tokens=80, seed=[1, 2])
    calls = result.tool_calls
    assert len(calls) == 2
    for row in calls:
        assert row
        for call in row:
            jsonschema.validate(call["arguments"], SCHEMAS[call["name"]])
    assert model.generate(MESSAGES, tools=TOOLS, tool_choice="none", max_new_tokens=2).tool_calls is None
    result.save(tmp_path / "r.json")
    with pytest.raises(pardec.SpecError, match="read with the model's tokenizer"):
        _ = pardec.Result.load(tmp_path / "r.json").tool_calls
