"""Texts that the target writes are the same whether written at once or in parts."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import pardec
from pardec.models.errors import SpecError
from pardec.training.texts import Writing, _long, chat_ids, rows, write


def test_a_file_that_was_cut_off_is_gone_on_with(model: pardec.Model, tmp_path: Path) -> None:
    how = Writing(tmp_path / "whole.jsonl", rows=12, batch=4, answer_tokens=8, tasks=("lists",), seed=3)
    assert write(model, how) == 12
    whole = how.out.read_text()
    parts = Writing(tmp_path / "parts.jsonl", rows=12, batch=4, answer_tokens=8, tasks=("lists",), seed=3)
    lines = whole.splitlines(keepends=True)
    parts.out.write_text("".join(lines[:6]) + lines[6][:10])
    assert write(model, parts) == 12
    assert parts.out.read_text() == whole


def test_answers_end_with_the_end_token_and_prompts_are_the_task_s(model: pardec.Model, tmp_path: Path) -> None:
    how = Writing(tmp_path / "texts.jsonl", rows=6, batch=6, answer_tokens=40, tasks=("lists",), warm=0.0)
    write(model, how)
    texts = list(rows([how.out]))
    assert len(texts) == 6
    assert all(answer[-1] == 3 and 3 not in answer[:-1] for _, answer in texts)
    assert all(model.tokenizer.decode(prompt).strip() for prompt, _ in texts)


def test_a_share_of_the_chunks_is_sampled(model: pardec.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, generate = list[tuple[float, int]](), pardec.Model.generate

    def watched(self: pardec.Model, *given: Any, **how: Any) -> pardec.Result:
        asked.append((how["temperature"], how["seed"]))
        return generate(self, *given, **how)

    monkeypatch.setattr(pardec.Model, "generate", watched)
    for warm in (0.0, 1.0):
        out = tmp_path / f"{warm}.jsonl"
        write(model, Writing(out, rows=2, batch=1, answer_tokens=1, tasks=("lists",), warm=warm, temperature=0.7))
    assert [temperature for temperature, _ in asked] == [0, 0, 0.7, 0.7]
    assert asked[2] != asked[3], "each chunk has its own seed"


def test_long_prompts_ask_about_several_passages(
    model: pardec.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passages = [" ".join(f"{name}{at}" for at in range(150)) for name in "abcdef"]
    chosen = [_long(random.Random(seed), passages, "who is it?") for seed in range(40)]
    questions = [text for text in chosen if text.endswith("\nwho is it?")]
    summaries = [text for text in chosen if text.startswith("Summarize: ")]
    assert len(questions) + len(summaries) == 40
    assert min(len(questions), len(summaries)) > 10
    assert all(3 <= text.count("\n") <= 5 and 60 <= len(text.split("\n")[0].split()) < 130 for text in questions)
    assert all(1500 <= len(text) - len("Summarize: ") < 3500 for text in summaries)
    how = Writing(tmp_path / "texts.jsonl", rows=8, batch=4, answer_tokens=100, prompt_tokens=8, about=0.0, long=1.0)
    monkeypatch.setattr("pardec.training.texts.chat_ids", lambda model, text: model.tokenizer(text)["input_ids"])
    long = [([5] * 12, [60 + at % 9 for at in range(90)])] * 4
    how.out.write_text("".join(json.dumps({"prompt": prompt, "answer": answer}) + "\n" for prompt, answer in long))
    template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    monkeypatch.setattr(model.tokenizer, "chat_template", template)
    assert write(model, how) == 8
    assert all(len(prompt) > 100 for prompt, _ in list(rows([how.out]))[4:])


def test_a_prompt_of_a_file_may_hold_line_separators_of_unicode(model: pardec.Model, tmp_path: Path) -> None:
    file, prompts = tmp_path / "prompts.jsonl", ["one\u2028two\x85three", "four"]
    lines = [json.dumps({"prompt": prompt}, ensure_ascii=False) for prompt in prompts]
    file.write_text("\n".join([*lines, ""]), encoding="utf-8")
    how = Writing(tmp_path / "texts.jsonl", rows=2, batch=2, answer_tokens=2, prompts=file)
    assert write(model, how) == 2
    assert sorted(prompt for prompt, _ in rows([how.out])) == sorted(chat_ids(model, prompt) for prompt in prompts)


def test_tasks_without_training_problems_are_refused(model: pardec.Model, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "Tom has 3 cups.", "answer": "3"}\n')
    with pytest.raises(SpecError, match="no training problems"):
        write(model, Writing(tmp_path / "texts.jsonl", rows=4, batch=4, tasks=(str(prompts),)))


def test_a_file_goes_on_with_the_settings_that_it_was_begun_with(model: pardec.Model, tmp_path: Path) -> None:
    how = Writing(tmp_path / "texts.jsonl", rows=4, batch=2, answer_tokens=2, tasks=("lists",))
    write(model, how)
    assert write(model, replace(how, tasks=(), seed=1)) == 4, "a complete file is read"
    for other in ({"tasks": ("arithmetic",)}, {"rows": 6, "seed": 1}, {"rows": 6, "temperature": 0.5}):
        with pytest.raises(SpecError, match=f"was begun with {list(other)[-1]}"):
            write(model, replace(how, **other))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"prompt": "a"}\n{"pro\n', "line 2 is no prompt"),
        ('{"text": "a"}\n', "line 1 is no prompt"),
        ('{"prompt": [2, 5]}\n', "line 1 is no prompt"),
        ("\n", "has no prompt"),
    ],
)
def test_a_line_that_is_no_prompt_is_named(text: str, message: str, model: pardec.Model, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(text)
    with pytest.raises(SpecError, match=message):
        write(model, Writing(tmp_path / "texts.jsonl", rows=1, batch=1, prompts=prompts))
