"""The shared tokenizer: the committed file is what the script builds, and decoding loses nothing."""

from __future__ import annotations

import string
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

import pardec
from pardec.models.files.catalog import embedded_names
from pardec.models.loading.kinds import kind_of
from pardec.tasks import list_tasks, task
from tests.script_modules import script_module

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "models" / "embedded" / "tokenizer"
TOKENIZER = AutoTokenizer.from_pretrained(FOLDER)
ASCII = string.digits + string.ascii_letters + string.punctuation + " \n\t"


def ids_of(text: str) -> list[int]:
    return TOKENIZER(text, add_special_tokens=False)["input_ids"]


def test_building_again_gives_the_committed_files(tmp_path: Path) -> None:
    script_module("scripts/make_tokenizer.py").main(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / name).read_bytes() == (FOLDER / name).read_bytes()


def test_special_tokens_and_size() -> None:
    t = TOKENIZER
    assert [t.pad_token_id, t.unk_token_id, t.bos_token_id, t.eos_token_id, t.mask_token_id] == [0, 1, 2, 3, 4]
    assert len(t) < 450
    assert t("How many?")["input_ids"][0] == t.bos_token_id
    assert isinstance(t, PreTrainedTokenizerFast)


@pytest.mark.parametrize("name", [name for name in list_tasks() if getattr(task(name), "words", None)])
def test_task_texts_are_whole_words_that_round_trip(name: str) -> None:
    for problem in task(name).problems("train", 25, 0) + task(name).problems("heldout", 25, 0):
        for text in (problem.prompt, problem.answer):
            ids = ids_of(text)
            assert TOKENIZER.decode(ids) == text
            assert TOKENIZER.unk_token_id not in ids
            pieces = len(text.split()) + sum(c in string.punctuation for c in text)
            assert len(ids) <= pieces + sum(c.isdigit() for c in text)
        assert len(ids_of(problem.answer)) < task(name).tokens


@pytest.mark.parametrize("name", [name for name in list_tasks() if task(name).answers == "text"])
def test_every_task_round_trips_in_few_tokens(name: str) -> None:
    for problem in task(name).problems("heldout", 40, 0):
        for text in (problem.prompt, problem.answer):
            ids = ids_of(str(text))
            assert TOKENIZER.decode(ids) == text
            assert TOKENIZER.unk_token_id not in ids
        assert len(ids_of(problem.answer)) < task(name).tokens


def test_digits_and_words_are_single_tokens() -> None:
    pieces = TOKENIZER.convert_ids_to_tokens(ids_of("12 + 7 = 19; answer 19"))
    assert pieces == ["▁1", "2", "▁+", "▁7", "▁=", "▁1", "9", ";", "▁answer", "▁1", "9"]


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet=ASCII, min_size=1, max_size=80))
def test_ascii_text_round_trips(text: str) -> None:
    text = text.lstrip(" ") or "x"
    for special in ("<pad>", "<unk>", "<bos>", "<eos>", "<mask>"):
        text = text.replace(special, "")
    assert TOKENIZER.decode(TOKENIZER(text)["input_ids"], skip_special_tokens=True) == text


def test_a_long_word_is_not_unknown() -> None:
    assert TOKENIZER.unk_token_id not in ids_of("x" * 500)


def test_a_mask_takes_the_space_before_it() -> None:
    pieces = TOKENIZER.convert_ids_to_tokens(ids_of("in <mask><mask> box"))
    assert pieces == ["▁in", "<mask>", "<mask>", "▁box"]


def test_chat_renders_the_last_user_message_and_nothing_behind_it() -> None:
    turns = [
        {"role": "user", "content": "A?"},
        {"role": "assistant", "content": "4 7"},
        {"role": "user", "content": "How many are left?"},
    ]
    rendered = TOKENIZER.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    assert rendered == "<bos>How many are left?"
    ids = TOKENIZER.apply_chat_template(turns, return_dict=True)["input_ids"]
    assert ids == TOKENIZER("How many are left?")["input_ids"]
    assert TOKENIZER.apply_chat_template(turns[:2], tokenize=False) == "<bos>A? 4 7<eos>"


TEXT_MODELS = ("tiny-dream", "tiny-llada", "tiny-llama", "tiny-llama-draft", "tiny-nemotron")
IN_BYTES = "tiny-llama-bytes"  # which drafts across vocabularies


@pytest.mark.parametrize("name", TEXT_MODELS)
def test_each_text_model_carries_the_tokenizer_so_that_its_folder_opens_in_transformers(name: str) -> None:
    folder = FOLDER.parent / name
    for file in FOLDER.iterdir():
        assert (folder / file.name).read_bytes() == file.read_bytes(), f"copy {file.name} from {FOLDER}"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = "Tom has 8 cups. He loses 3."
    assert tokenizer(text)["input_ids"] == TOKENIZER(text)["input_ids"]
    assert tokenizer.apply_chat_template([{"role": "user", "content": text}], tokenize=False)


def test_every_text_model_is_among_them() -> None:
    told = [(name, kind_of(name)) for name in embedded_names()]
    assert tuple(name for name, kind in told if kind is not None and kind.draws is None) == (
        *TEXT_MODELS[:2],
        "tiny-llama",
        IN_BYTES,
        *TEXT_MODELS[3:],
    )


def test_every_byte_is_a_token_of_the_model_that_spells_in_bytes(tmp_path: Path) -> None:
    script_module("scripts/make_tokenizer.py").main(tmp_path, in_bytes=True)
    for file in tmp_path.iterdir():
        assert (FOLDER.parent / IN_BYTES / file.name).read_bytes() == file.read_bytes()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    text = 'Tom\'s "8" cups: é \t ✓'
    ids = tokenizer(text)["input_ids"]
    assert (len(tokenizer), len(ids)) == (260, 1 + len(text.encode()))
    assert tokenizer.decode(ids, skip_special_tokens=True) == text


def test_transformers_decodes_the_embedded_causal_model_as_pardec_does() -> None:
    model = pardec.load("tiny-llama", device="cpu")
    theirs, tokenizer = AutoModelForCausalLM.from_pretrained(model.path), AutoTokenizer.from_pretrained(model.path)
    asked = tokenizer("Reverse the list: 4 7 2 9 1.", return_tensors="pt")
    out = theirs.float().generate(**asked, max_new_tokens=16, do_sample=False)[0, asked["input_ids"].shape[1] :]
    ours = model.generate("Reverse the list: 4 7 2 9 1.", max_new_tokens=16)
    assert tokenizer.decode(out, skip_special_tokens=True) == ours.text[0]
