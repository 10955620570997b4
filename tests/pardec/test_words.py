"""Arguments of other engines: accepted ones, those answered with pardec's name; and empty answers."""

from __future__ import annotations

import inspect
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import pardec
from pardec.cli import run
from pardec.cli.inputs import read_stop
from pardec.models.errors import SpecError
from pardec.requests import answer_warnings
from pardec.requests.settings import OTHER_NAMES, Arguments, Settings
from pardec.samplers.rng import row_seeds

Cli = Callable[..., tuple[int, str, str]]

TEXT = "Tom has 3 cups. How many cups does Tom have now?"
FOREIGN = "Who are you?"  # nothing that the embedded models know
DRAWN: dict[str, Any] = {"temperature": 0.9, "max_new_tokens": 8}


# --- what is not taken ---


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("gen_length", "max_new_tokens="),
        ("max_length", "max_new_tokens="),
        ("num_samples", "num_return_sequences="),
        ("stop_words", "stop="),
        ("steps", "fixed:steps="),
        ("num_beams", "num_return_sequences="),
        ("threshold", "threshold:tau="),
        ("remasking", "sampler="),
        ("alg", "origin"),
        ("cfg_scale", "cfg="),
        ("attention_mask", "input_ids="),
        ("pad_token_id", "mask_id="),
        ("streamer", "model.stream"),
        ("assistant_model", "model:name="),
        ("no_repeat_ngram_size", "logits_processor="),
    ],
)
def test_a_foreign_word_is_told_pardecs_own(llama: pardec.Model, name: str, says: str) -> None:
    for call in (llama.generate, llama.stream):
        with pytest.raises(SpecError, match=f"takes no argument '{name}'") as caught:
            call(TEXT, **{name: 1})
        assert says in (caught.value.hint or "")
    with pytest.raises(SpecError) as caught:
        llama.serve_batch([TEXT], **{name: 1})  # type: ignore[misc]
    assert says in (caught.value.hint or "")


def test_no_word_of_the_table_is_taken_and_every_name_in_its_hints_is(llama: pardec.Model) -> None:
    known = set(Settings.signature().parameters)
    assert not known & set(OTHER_NAMES)
    assert known - {"self", "prompt"} == set(Arguments.__annotations__)
    import re

    others = {"sampler", "tau", "steps", "name", "batch_size", "mask_id", "device"}  # of specs, serve_batch and load
    for hint in OTHER_NAMES.values():
        assert set(re.findall(r"\b([a-z_]+)=", hint)) <= known | others, hint


def test_values_of_other_engines_are_told_too(llama: pardec.Model) -> None:
    for given, says in (
        ({"top_k": 0}, "leave it out"),
        ({"min_p": 2}, "min_p="),
        ({"repetition_penalty": 0}, "1 is off"),
    ):
        with pytest.raises(SpecError) as caught:
            llama.generate(TEXT, **given)  # type: ignore[arg-type]
        assert says in (caught.value.hint or "")
    with pytest.raises(SpecError) as caught:
        llama.generate(torch.tensor([[5, 6]]))
    assert "input_ids=" in (caught.value.hint or "")


# --- several answers to a prompt ---


@pytest.mark.parametrize("name", ["llama", "model"])
def test_return_sequences_are_the_rows_of_a_batch(name: str, request: pytest.FixtureRequest) -> None:
    model: pardec.Model = request.getfixturevalue(name)
    prompts = [TEXT, "Ann has 8 cups."]
    result = model.generate(prompts, num_return_sequences=3, seed=5, **DRAWN)
    spelt = model.generate([prompt for prompt in prompts for _ in range(3)], seed=5, **DRAWN)
    assert result.tokens == spelt.tokens
    assert result.seeds == spelt.seeds == list(row_seeds(5, 6))
    assert result.settings == spelt.settings
    assert len({tuple(tokens) for tokens in result.tokens}) > 2
    own = model.generate(TEXT, num_return_sequences=2, seed=[7, 8], **DRAWN)
    assert own.tokens == model.generate([TEXT, TEXT], seed=[7, 8], **DRAWN).tokens
    finished = [event.row for event in model.stream(TEXT, num_return_sequences=2, **DRAWN) if hasattr(event, "reason")]
    assert sorted(finished) == [0, 1]


@pytest.mark.parametrize("name", ["llama", "model"])
def test_a_service_makes_several_too(name: str, request: pytest.FixtureRequest) -> None:
    model: pardec.Model = request.getfixturevalue(name)
    items = [TEXT, {"prompt": "Ann has 8 cups.", "seed": 4, "max_new_tokens": 5}, "Bob has 2 cups."]
    serving = model.serve_batch(items, batch_size=2, num_return_sequences=2, **DRAWN)
    served = {(row.index, row.sample): row for row in serving}
    assert sorted(served) == [(index, sample) for index in range(3) for sample in range(2)]
    whole = model.generate([TEXT, "Ann has 8 cups.", "Bob has 2 cups."], num_return_sequences=2, **DRAWN)
    for index in (0, 2):
        for sample in range(2):
            assert served[index, sample].tokens == whole.tokens[2 * index + sample]
    one = model.generate("Ann has 8 cups.", num_return_sequences=2, seed=4, temperature=0.9, max_new_tokens=5)
    assert [served[1, sample].tokens for sample in range(2)] == one.tokens


def test_several_of_what_is_sure_are_refused(llama: pardec.Model, model: pardec.Model) -> None:
    for each in (llama, model):
        with pytest.raises(SpecError, match="temperature=0 takes the likeliest"):
            each.generate(TEXT, num_return_sequences=2)
        with pytest.raises(SpecError, match="num_images is for image models") as caught:
            each.generate(TEXT, num_images=2)
        assert "num_return_sequences" in (caught.value.hint or "")
    for name in ("tiny-llamagen", "tiny-mar"):
        with pytest.raises(SpecError, match="num_return_sequences is for text") as caught:
            pardec.load(name, device="cpu").generate(num_return_sequences=2)
        assert "num_images=2" in (caught.value.hint or "")


def test_end_tokens_that_may_not_come_and_must_are_refused(model: pardec.Model) -> None:
    with pytest.raises(SpecError, match="only end tokens at index 1"):
        model.generate(TEXT, max_new_tokens=4, min_new_tokens=2, allowed={1: [3]})
    with pytest.raises(SpecError, match="min_new_tokens=9 is more than the 8"):
        model.generate(TEXT, max_new_tokens=8, min_new_tokens=9)


@pytest.mark.parametrize("name", ["tiny-dream", "tiny-llama"])
def test_no_row_ends_before_min_new_tokens(name: str) -> None:
    model = pardec.load(name, device="cpu")
    for arguments in ({}, {"temperature": 1.0}):
        result = model.generate([FOREIGN, TEXT], min_new_tokens=20, max_new_tokens=24, **arguments)  # type: ignore[arg-type]
        assert all(generated >= 20 for generated in result.generated)
        assert result.settings["min_new_tokens"] == 20


# --- settings of runs ---


def test_what_nobody_asks_for_is_in_no_setting(llama: pardec.Model) -> None:
    """Settings that are not used are left out, so that row keys of earlier versions stay valid."""
    names = {"stop", "min_p", "repetition_penalty", "min_new_tokens", "num_return_sequences"}
    assert not names & set(llama.prepare(TEXT).settings)
    assert not names & set(llama.prepare(TEXT, min_p=0.0, repetition_penalty=1, min_new_tokens=0, stop=[]).settings)


def test_the_command_takes_them_and_a_run_goes_on_with_the_same_only(cli: Cli, folder: Path, tmp_path: Path) -> None:
    prompts, rows = tmp_path / "prompts.jsonl", tmp_path / "rows.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": text, "id": text}) + "\n" for text in (TEXT, "Ann has 8 cups.")))
    words = ("--min-p", 0.1, "--repetition-penalty", 1.2, "--min-new-tokens", 2, "--stop", r"\n", "--stop", "b")
    asked = ("generate", folder, "--prompts", prompts, "-o", rows, "-n", 8, "--temperature", 1)
    code, _, err = cli(*asked, *words, "--num-return-sequences", 2)
    made = [json.loads(line) for line in rows.read_text().splitlines()]
    assert code == 0, err
    assert sorted(row["id"] for row in made) == sorted([TEXT, "Ann has 8 cups."] * 2)
    assert {json.dumps(row["run"]["stop"]) for row in made} == {'["\\n", "b"]'}
    whole = pardec.load(folder, device="cpu", dtype="float32").generate(
        [TEXT, "Ann has 8 cups."], min_p=0.1, repetition_penalty=1.2, min_new_tokens=2, stop=["\n", "b"],
        temperature=1.0, max_new_tokens=8, num_return_sequences=2,
    )  # fmt: skip
    assert {row["seed"]: row["text"] for row in made} == dict(zip(whole.seeds, whole.text or [], strict=True))
    assert "4 of 4 rows already" in cli(*asked, *words, "--num-return-sequences", 2)[2]
    code, _, err = cli(*asked, *words[:-2], "--num-return-sequences", 2)
    assert (code, "stop ['\\n', 'b'] there, ['\\n'] now" in err) == (2, True)


def test_a_shell_writes_line_breaks() -> None:
    assert read_stop([r"\n\n", r"a\tb"]) == ["\n\n", "a\tb"]
    assert read_stop([]) is read_stop(None) is None


# --- empty answers ---


def test_an_empty_answer_says_what_an_embedded_model_knows(cli: Cli) -> None:
    code, out, err = cli("generate", "tiny-dream", "-p", FOREIGN, "-p", TEXT)
    assert (code, out.count("\n")) == (0, 2)
    assert (
        "warning: 1 of 2 answers is empty: tiny-dream is trained on arithmetic, lists, records, chains, grids," in err
    )
    assert "warning" not in cli("generate", "tiny-dream", "-p", FOREIGN, "--quiet")[2]
    assert "warning" not in cli("generate", "tiny-dream", "-p", TEXT)[2]


def test_an_instruct_model_without_its_template_says_so(cli: Cli, folder: Path, model: pardec.Model) -> None:
    end = ("--allowed", folder.parent / "end.json")
    end[1].write_text('{"0": [3]}')
    _, _, err = cli("generate", folder, "-p", TEXT, "-n", 4, "--raw", *end)
    assert "the answer is empty: random-dream has a chat template and the prompt is plain text; leave --raw out" in err
    assert "warning" not in cli("generate", folder, "-p", TEXT, "-n", 4, *end)[2]
    with pytest.warns(pardec.EmptyAnswer, match="pass messages") as caught:
        model.generate(TEXT, max_new_tokens=4, allowed={0: [3]})
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.generate([{"role": "user", "content": TEXT}], max_new_tokens=4, allowed={0: [3]})
        model.generate(TEXT, max_new_tokens=4, allowed={0: [9]})
        warnings.simplefilter("ignore", pardec.EmptyAnswer)  # what the message says
        model.generate(TEXT, max_new_tokens=4, allowed={0: [3]})


def test_from_python_an_embedded_model_says_what_it_knows() -> None:
    model = pardec.load("tiny-dream", device="cpu")
    with pytest.warns(
        pardec.EmptyAnswer, match="is trained on arithmetic, lists, records, chains, .* sort and stories only"
    ):
        model.generate(FOREIGN)
    assert answer_warnings.tasks_of(model)[:3] == ["arithmetic", "lists", "records"]
    assert "EmptyAnswer" in inspect.getsource(answer_warnings)


def test_an_option_of_another_engine_is_told_pardec_s_own_word(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["generate", "tiny-dream", "-p", "a", "--gen-length", "5"]) == 2
    assert "--max-new-tokens 64 asks for 64 tokens" in capsys.readouterr().err
