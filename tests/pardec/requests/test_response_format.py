"""response_format=: every sampled answer is complete JSON of the schema, with any method, or the request is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import pardec
from pardec.models.errors import SpecError
from pardec.models.model import LanguageModel
from tests.grids import chequered, one_in
from tests.pardec.requests.schemas import BOTH, HELD, MASKED, MASKED_WORDS, PERSON, record
from tests.pardec.serving.test_serving import same_alone

PROMPTS = ["Tom has 3 cups. Make a record of it.", "Ann"]
RECORD = record(
    {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "job": {"enum": ["cook", "judge", "pilot", "a painter"]},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 9}, "minItems": 2, "maxItems": 3},
        "left": {"type": ["boolean", "null"]},
    }
)
SMALL = record({"age": {"type": "integer", "maximum": 120}, "job": {"enum": ["cook", "judge", "a painter"]}})


@pytest.fixture
def no_forward(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fails if a model runs."""

    def run(*_: Any, **__: Any) -> None:
        raise AssertionError("a forward ran")

    with monkeypatch.context() as patch:
        patch.setattr(LanguageModel, "forward", run)
        patch.setattr(LanguageModel, "run", run)
        yield


def valid(result: pardec.Result, schema: dict[str, Any]) -> pardec.Result:
    """The result, after checking that every row is JSON of the schema."""
    for text in result.text:
        jsonschema.validate(json.loads(text), schema, cls=jsonschema.Draft202012Validator)
    assert result.parsed == [json.loads(text) for text in result.text]
    return result


@pytest.mark.parametrize("name", HELD)
@pytest.mark.parametrize("sampler", ["threshold", "fixed:steps=6"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.covers(1)
def test_masked_answers_are_valid(dream: pardec.Model, name: str, sampler: str, temperature: float) -> None:
    arguments: dict[str, Any] = {"sampler": sampler, "temperature": temperature, "max_new_tokens": 80}
    result = dream.generate(PROMPTS, response_format=HELD[name], seed=[1, 2], **arguments)
    valid(result, HELD[name])
    if not one_in(3, name):
        return
    alone = dream.generate(PROMPTS[1], response_format=HELD[name], seed=[2], **arguments)
    assert alone.tokens[0] == result.tokens[1]


LEFT_TO_RIGHT = HELD | {name: schema for name, (schema, _) in MASKED.items()}


@pytest.mark.parametrize(("name", "temperature"), chequered(LEFT_TO_RIGHT, [0.0, 1.0]))
def test_autoregressive_answers_are_valid_and_exact(llama: pardec.Model, name: str, temperature: float) -> None:
    schema = LEFT_TO_RIGHT[name]
    least = shortest(llama, schema)
    new = least + 8
    drafted = ("lookup", "model:name=tiny-llama-draft,k=3")

    def answers(sampler: str, new: int, rows: slice = slice(None)) -> list[list[int]]:
        arguments: dict[str, Any] = {"temperature": temperature, "max_new_tokens": new, "seed": [1, 2][rows]}
        return valid(llama.generate(PROMPTS[rows], response_format=schema, sampler=sampler, **arguments), schema).tokens

    other = drafted[len(name) % 2]  # each with half of the schemas
    together = answers(other, new)
    if temperature == 0:
        assert together == answers("sequential", new)
    else:
        assert answers("lookup", least)
        assert not one_in(3, name) or answers(other, new, slice(1, 2)) == together[1:]


def shortest(model: pardec.Model, schema: dict[str, Any]) -> int:
    """The fewest tokens with which a request is accepted, as the error states."""
    try:
        model.prepare("Ann", response_format=schema, max_new_tokens=1)
    except SpecError as error:
        return int(error.message.split()[-1])
    return 1


@pytest.mark.parametrize("name", [*MASKED, *BOTH])
def test_what_cannot_be_held_in_any_order_is_refused(dream: pardec.Model, no_forward: None, name: str) -> None:
    schema, words = {**MASKED, **BOTH}[name]
    with pytest.raises(SpecError) as error:
        dream.generate(PROMPTS, response_format=schema)
    assert MASKED_WORDS.get(name, words) in error.value.message
    assert error.value.hint


@pytest.mark.parametrize("name", BOTH)
def test_what_cannot_be_held_is_refused(llama: pardec.Model, no_forward: None, name: str) -> None:
    schema, words = BOTH[name]
    with pytest.raises(SpecError) as error:
        llama.generate(PROMPTS, response_format=schema)
    assert words in error.value.message
    assert error.value.hint


# --- forms ---


def test_every_form_of_a_schema_says_the_same(llama: pardec.Model, dream: pardec.Model) -> None:
    wrapped = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
    for model in (llama, dream):
        bare = model.generate("Ann", response_format=PERSON, max_new_tokens=40)
        assert model.generate("Ann", response_format=wrapped, max_new_tokens=40).tokens == bare.tokens
        free = model.generate("Ann", max_new_tokens=8)
        text = model.generate("Ann", max_new_tokens=8, response_format={"type": "text"})
        assert (text.tokens, text.parsed, free.parsed) == (free.tokens, None, None)
    result = llama.generate(PROMPTS, response_format={"type": "json_object"}, max_new_tokens=30, temperature=1.0)
    assert all(isinstance(value, dict) for value in result.parsed or [None])
    with pytest.raises(SpecError, match="free keys"):
        dream.prepare("Ann", response_format={"type": "json_object"})


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ("json", r"response_format must be a dict \(a JSON object\), got str"),
        ({"type": "json_schema"}, "has no json_schema.schema"),
        ({"type": "json_object", "strict": True}, "of type 'json_object' has no 'strict'"),
        ({"schema": PERSON}, "has none of a JSON schema's keywords"),
        ({"type": "record"}, "'record' is not a JSON type"),
    ],
)
def test_other_forms_are_refused(llama: pardec.Model, no_forward: None, form: Any, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        llama.generate("Ann", response_format=form)


@pytest.mark.parametrize(
    "argument",
    [{"allowed": {0: [5]}}, {"stop": "x"}, {"min_new_tokens": 3}, {"template": "a <mask>"}, {"stop_ids": [3]}],
)
def test_what_decides_about_the_same_positions_is_refused(
    dream: pardec.Model, no_forward: None, argument: dict[str, Any]
) -> None:
    (name,) = argument
    with pytest.raises(SpecError, match=f"{name} cannot be combined with response_format"):
        dream.generate("Ann", response_format=PERSON, **argument)


@pytest.mark.parametrize("sampler", ["sequential", "lookup"])
def test_a_stop_string_ends_an_autoregressive_answer(llama: pardec.Model, sampler: str) -> None:
    arguments: dict[str, Any] = {"response_format": SMALL, "max_new_tokens": 40, "sampler": sampler}
    whole = valid(llama.generate("Ann", stop="@", **arguments), SMALL)
    assert whole.text == llama.generate("Ann", **arguments).text
    cut = llama.generate("Ann", stop=["job"], **arguments)
    assert (cut.text, cut.finish) == ([whole.text[0].partition("job")[0]], ["stop"])  # type: ignore[index]
    with pytest.raises(ValueError, match="Unterminated|Expecting"):
        cut.parsed  # noqa: B018


def test_too_few_tokens_are_refused_with_the_fewest(llama: pardec.Model, dream: pardec.Model, no_forward: None) -> None:
    for model, words in ((llama, "shortest answer takes"), (dream, "template takes")):
        with pytest.raises(SpecError, match=f"max_new_tokens=5 is too few .* {words} 1"):
            model.generate("Ann", response_format=PERSON, max_new_tokens=5)


@pytest.mark.parametrize("name", ["tiny-llamagen", "tiny-mar"])
def test_image_models_refuse_it(no_forward: None, name: str) -> None:
    model = pardec.load(name, device="cpu")
    with pytest.raises(SpecError, match="response_format is for text"):
        model.prepare(label=0, response_format=PERSON)


# --- masked models ---

ANY_ORDER = [
    "threshold:tau=0.2@dual", "threshold:tau=0.2+eos@prefix", "fixed:steps=3,order=random",
    "fixed:steps=9,order=random@dkv_greedy", "timesteps:steps=5@vicinity:before=4,after=4,warmup=2",
    "origin:steps=4@dual", "carry", "klass", "factor", "entropy_bound:gamma=4.0",
    "credit+localleap+prophet:early=0.0,mid=0.0,late=0.0@dual", "fixed:steps=2+wino@dual", "fixed:steps=2+remdm",
    "fixed:steps=2+edit:tau=0.0", "edit:tau=0.1,of=filtered+threshold:tau=0.3", "smoothing+threshold:tau=0.3",
    "random+threshold:tau=0.0",
]  # fmt: skip


@pytest.mark.parametrize(("sampler", "temperature"), chequered(ANY_ORDER, [0.0, 1.5]))
def test_gaps_of_several_tokens_hold_in_any_order(dream: pardec.Model, sampler: str, temperature: float) -> None:
    arguments: dict[str, Any] = {"sampler": sampler, "temperature": temperature, "max_new_tokens": 48}
    result = valid(dream.generate(PROMPTS, response_format=SMALL, seed=[5, 6], **arguments), SMALL)
    if temperature:
        alone = dream.generate(PROMPTS[1], response_format=SMALL, seed=[6], **arguments)
        assert alone.tokens[0] == result.tokens[1]


def test_every_option_of_an_enum_can_be_given(dream: pardec.Model) -> None:
    options = ["cook", "judge", "a painter", "x"]
    schema = record({"job": {"enum": options}})
    found = set()
    for seed in range(60):
        result = dream.generate(
            PROMPTS, response_format=schema, sampler="random+threshold:tau=0.0", temperature=8.0, seed=seed
        )
        found |= {row["job"] for row in result.parsed or []}
        if len(found) == len(options):
            break
    assert found == set(options)


# --- autoregressive models ---

DRAFTED = [
    "lookup", "copyspec", "recycling:tree=4-6-4", "jacobi:window=6", "seeded_jacobi:window=6", "sjd:window=6",
    "model:name=tiny-llama-draft,k=3+dyspec", "earlyexit:layers=1,k=3", "lookahead:window=4,ngram=3",
    "eagle:name=tiny-llama-eagle", "medusa:name=tiny-llama-medusa",
]  # fmt: skip


@pytest.fixture(scope="module")
def plain(llama: pardec.Model) -> list[list[int]]:
    return llama.generate(PROMPTS, sampler="sequential", response_format=SMALL, max_new_tokens=32).tokens


@pytest.mark.parametrize("sampler", DRAFTED)
def test_a_drafter_changes_no_greedy_answer(llama: pardec.Model, plain: list[list[int]], sampler: str) -> None:
    arguments: dict[str, Any] = {"response_format": SMALL, "max_new_tokens": 32}
    assert llama.generate(PROMPTS, sampler=sampler, **arguments).tokens == plain
    valid(llama.generate(PROMPTS[1], sampler=sampler, temperature=1.0, **arguments), SMALL)


@pytest.mark.parametrize("argument", [{"top_k": 1}, {"top_p": 0.5}, {"repetition_penalty": 1.5}, {"stop_ids": []}])
def test_filters_choose_among_what_the_grammar_leaves(llama: pardec.Model, argument: dict[str, Any]) -> None:
    valid(llama.generate(PROMPTS, response_format=SMALL, temperature=1.0, max_new_tokens=32, **argument), SMALL)


def test_a_row_ends_where_nothing_can_follow(llama: pardec.Model) -> None:
    result = llama.generate("Ann", response_format=record({"a": {"const": 1}}), max_new_tokens=50)
    assert (result.text, result.finish) == (['{"a":1}'], ["stop"])
    assert 3 not in result.tokens[0]  # no forward is made for the end token
    number = llama.generate("Ann", response_format={"type": "integer"}, max_new_tokens=50, temperature=3.0)
    assert isinstance((number.parsed or [None])[0], int)


def test_without_llguidance_the_error_tells_how_to_install_it(
    llama: pardec.Model, dream: pardec.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "llguidance", None)
    with pytest.raises(SpecError, match="needs llguidance") as error:
        llama.prepare("Ann", response_format=PERSON)
    assert "structured" in str(error.value.hint)
    valid(dream.generate("Ann", response_format=PERSON), PERSON)  # masked models do without


# --- many rows ---


def test_rows_of_other_schemas_share_a_running_batch(llama: pardec.Model, dream: pardec.Model) -> None:
    schemas = [HELD["flat"], None, HELD["integer bounds"], SMALL, None]
    items: list[dict[str, Any]] = [
        {"prompt": f"{name} has {at} cups.", "max_new_tokens": 40}
        | ({"max_new_tokens": 9} if schema is None else {"response_format": schema})
        for at, (name, schema) in enumerate(zip(["Tom", "Ann", "Kim", "Bob", "Eva"], schemas, strict=True))
    ]
    items[1] |= {"allowed": {0: ["4", "8"], 3: ["she"]}}
    for model, samplers in (
        (llama, ("sequential", "model:name=tiny-llama-draft,k=3")),
        (dream, ("wino", "threshold:tau=0.3@dual")),
    ):
        for at, sampler in enumerate(samplers):
            for temperature in (0.0, 1.0) if at == 1 else (1.0,):
                # Templates have no end tokens, and rows of other end tokens wait for the batch to drain.
                some = items if model is llama else [item for item in items if "response_format" in item]
                assert same_alone(model, some, sampler=sampler, temperature=temperature) is None, sampler


# --- the command ---


def test_the_command_reads_a_schema_from_a_file(cli: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    file.write_text(json.dumps(RECORD))
    command = ("generate", "tiny-llama", "-p", "Ann", "-n", 72, "--device", "cpu", "--response-format", file)
    code, out, _ = cli(*command)
    assert code == 0
    jsonschema.validate(json.loads(out), RECORD)
    file.write_text('{"type": "array", "uniqueItems": true}')
    code, out, err = cli(*command, "--quiet")
    assert (code, out) == (2, "")
    assert "--response-format at #/uniqueItems" in err
    file.write_text("{")
    assert "cannot read --response-format" in cli(*command)[2]


SMOLLM2 = Path.home() / ".cache" / "pardec" / "smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.mark.slow
@pytest.mark.skipif(not SMOLLM2.exists(), reason="scripts/get_smollm2 fetches the model")
def test_a_real_model_keeps_to_every_schema() -> None:
    model = pardec.load(SMOLLM2, device="cpu")
    prompt = [[{"role": "user", "content": "Describe a person as JSON."}]]
    for at, schema in enumerate(LEFT_TO_RIGHT.values()):
        new = max(32, shortest(model, schema) + 4)
        arguments: dict[str, Any] = {"response_format": schema, "max_new_tokens": new, "sampler": "lookup"}
        valid(model.generate(prompt, temperature=1.0, seed=at, **arguments), schema)
        if at % 4 == 0:
            drafted = valid(model.generate(prompt, **arguments), schema)
            assert drafted.tokens == model.generate(prompt, **{**arguments, "sampler": "sequential"}).tokens
