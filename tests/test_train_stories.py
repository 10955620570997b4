"""The story model: its rows, its tokenizer, and a run that is interrupted and goes on."""

from __future__ import annotations

import json
import random
import re
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

import make_tokenizer  # noqa: E402
import story_prompts  # noqa: E402
from text_training import stories  # noqa: E402
from text_training.story_run import StoryRun  # noqa: E402
from train_stories import run_of  # noqa: E402
from transformers import AutoTokenizer  # noqa: E402

import pardec  # noqa: E402

pytestmark = pytest.mark.usefixtures("without_autocast")
STORY = 'Tom had a dog. "Sit!" he said. The dog sat down. Tom was happy.'
SHAPE = "hidden_size=32,intermediate_size=48,num_hidden_layers=2,num_attention_heads=2,num_key_value_heads=2"


def write_rows(file: Path, count: int) -> Path:
    rows = [
        {"prompt": [{"role": "user", "content": story_prompts.request(n)["prompt"]}], "text": f"{n}. {STORY} And he"}
        for n in range(count)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def run(folder: Path, steps: int, *more: str) -> StoryRun:
    if not (folder / "rows.jsonl").exists():
        write_rows(folder / "rows.jsonl", 120)
        make_tokenizer.main(folder / "state" / "tokenizer", pairs=300, rows=[folder / "rows.jsonl"])
    where = ["--state", str(folder / "state"), "--out", str(folder / "out"), "--shape", SHAPE, "--device", "cpu"]
    return run_of(["--rows", str(folder / "rows.jsonl"), "--steps", str(steps), "--batch", "512", *where, *more])


def test_rows_are_whole_sentences_and_short_requests(tmp_path: Path) -> None:
    [(prompt, answer)] = stories.read([write_rows(tmp_path / "rows.jsonl", 1)])
    assert prompt == "Write a happy story about a girl named Sue and a duck."
    assert answer == f"0. {STORY}"
    (tmp_path / "other.jsonl").write_text(json.dumps({"prompt": "a caf\u00e9", "text": "Yes."}) + "\n")
    assert list(stories.read([tmp_path / "other.jsonl"])) == []
    rows = write_rows(tmp_path / "rows.jsonl", 2)
    rows.write_text(rows.read_text()[:-9])  # the last line is still being written
    assert list(stories.read([rows])) == [(prompt, answer)]


def test_instructions_are_answered_by_the_story() -> None:
    story = "Tom had a dog. The cat sat down. Tom was happy."
    found = {stories.about(random.Random(seed), ("Write.", story)) for seed in range(60)}
    kinds = {"Go on with this text": 0, "What is the last sentence of this text": 0, "Repeat this sentence": 0}
    for prompt, answer in found:
        asked, text = re.split(r"[:?] ", prompt, maxsplit=1)
        if asked.startswith("Go on"):
            assert f"{text} {answer}" == story
        elif asked.startswith("What"):
            assert (text, answer) == (story, "Tom was happy.")
        elif "," not in asked:
            assert text == answer
            assert text in story
        else:
            new, old = asked.split('"')[1::2]
            assert [new if word == old else word for word in text[:-1].split()] == answer[:-1].split()
        kinds[asked.split(",")[0]] += 1
    assert all(kinds.values())
    assert any("," in prompt for prompt, _ in found)


def test_held_out_rows_are_never_drawn(tmp_path: Path) -> None:
    made = run(tmp_path, 1)
    trained, _ = made.rows(held_out=False)
    held_out, _ = made.rows(held_out=True)
    assert len(trained) + len(held_out) == 120
    assert not set(trained) & set(held_out)
    assert len(held_out) > 0


def test_tokenizer_of_pairs_keeps_every_text(tmp_path: Path) -> None:
    make_tokenizer.main(tmp_path, pairs=280, rows=[write_rows(tmp_path / "rows.jsonl", 9)])
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert len(tokenizer) == 280
    assert [tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.mask_token_id] == [
        0,
        2,
        3,
        4,
    ]
    for text in (STORY, " two  spaces\n\u00e9\u20ac <mask"):
        assert tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) == text
    message = [{"role": "user", "content": STORY}]
    ids = tokenizer.apply_chat_template(message, add_generation_prompt=True, return_dict=True)["input_ids"]
    assert ids == tokenizer(STORY + "\n")["input_ids"], "as the rows of training are encoded"


def test_an_interrupted_run_trains_what_an_unbroken_one_does(tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    whole.mkdir(), parts.mkdir()
    run(whole, 6).train()
    first = run(parts, 6)
    first.take_ = first.take  # type: ignore[attr-defined]

    def take(batch: object) -> float:
        if first.step == 2:
            first.stop()
        return first.take_(batch)  # type: ignore[attr-defined]

    first.take = take  # type: ignore[method-assign]
    first.train()
    assert first.step == 3
    run(parts, 6).train()
    states = [torch.load(folder / "state" / "state.pt", weights_only=True) for folder in (whole, parts)]
    assert states[0]["step"] == states[1]["step"] == 6
    for name, value in states[0]["model"].items():
        torch.testing.assert_close(states[1]["model"][name], value, rtol=0, atol=0)
    card = json.loads((whole / "out" / "card.json").read_text())
    assert card["curve"][-1]["step"] == 6
    assert card["recipe"]["core-hours"] >= 0
    assert "model in training" in (whole / "out" / "README.md").read_text()
    model = pardec.load(whole / "out", device="cpu", dtype="float32")
    assert model.family == "masked"
    assert model.generate(STORY, max_new_tokens=4, sampler="threshold").nfe[0] <= 4


def test_held_out_loss_of_a_flat_model_is_the_logarithm_of_its_vocabulary(tmp_path: Path) -> None:
    made = run(tmp_path, 1)
    with torch.no_grad():
        for value in made.model.parameters():
            value.zero_()
    rows, _ = made.rows(held_out=True)
    assert made.held_out_loss(made.model, rows) == pytest.approx(torch.tensor(300.0).log().item(), rel=1e-4)


def test_a_missing_tokenizer_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run_of(["--rows", "none.jsonl", "--steps", "1", "--state", str(tmp_path), "--out", str(tmp_path)])
    assert "make_tokenizer.py --pairs" in capsys.readouterr().err
