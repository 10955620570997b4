"""Texts that the target writes: the same whether they are written at once or in parts."""

from __future__ import annotations

from pathlib import Path

import pytest

import pardec
from pardec.drafting.texts import Writing, rows, write
from pardec.models.errors import SpecError


@pytest.fixture(scope="module")
def model() -> pardec.Model:
    return pardec.load("tiny-llama", device="cpu")


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


def test_tasks_without_training_problems_are_refused(model: pardec.Model, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "Tom has 3 cups.", "answer": "3"}\n')
    with pytest.raises(SpecError, match="no training problems"):
        write(model, Writing(tmp_path / "texts.jsonl", rows=4, batch=4, tasks=(str(prompts),)))
