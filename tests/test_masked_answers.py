"""`benchmarks/masked_answers.py`: its counts by hand, and a whole run on the embedded models."""

from __future__ import annotations

import json
from pathlib import Path

import masked_answers as judge
import pytest
import torch

import pardec
from pardec.training.texts import chat_ids

ROOT = Path(__file__).resolve().parents[1]


def test_agreement_counts_up_to_the_shorter_answer() -> None:
    assert judge.agreement([5, 6, 7], [5, 9, 7, 8]) == pytest.approx(2 / 3)
    assert judge.agreement([], [5]) is None


def test_distinct_counts_n_grams_over_all_answers() -> None:
    assert judge.distinct([[1, 2, 1, 2], [1, 2]], 1) == pytest.approx(2 / 6)
    assert judge.distinct([[1, 2, 1, 2], [1, 2]], 2) == pytest.approx(2 / 4)
    assert judge.distinct([[]], 1) == 0


def test_copies_change_one_word() -> None:
    for text, wanted in judge.copies(60):
        sentence = text.partition(": ")[2]
        assert sentence.split()[:-1] == wanted.split()[:-1]
        assert sentence != wanted
        assert f'"{wanted.split()[-1].rstrip(".")}" in place of "{sentence.split()[-1].rstrip(".")}"' in text
    assert len(set(judge.copies(60))) > 30


def test_nats_are_the_parents_likelihood_of_the_answer() -> None:
    parent = pardec.load("tiny-llama", device="cpu", dtype="float32")
    prompt, answer = [5, 6, 7], [8, 9]
    logits = parent.logits(torch.tensor([[5, 6, 7, 8]]))[0].log_softmax(-1)
    assert judge.nats(parent, prompt, answer) == pytest.approx(float(logits[2, 8] + logits[3, 9]) / 2, abs=1e-5)
    assert judge.nats(parent, prompt, []) is None


def test_a_run_judges_and_goes_on(tmp_path: Path) -> None:
    """The parent agrees with itself; a second run decodes nothing; a missed bound on empty answers is named."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"turns": [text]}) + "\n" for text in ("1+2=", "3+4=")))
    arguments = ["--parent", "tiny-llama", "--model", str(ROOT / "models/embedded/tiny-dream")]
    arguments += ["--prompts", str(prompts), "--run", str(tmp_path / "run"), "--count", "2", "--max-new-tokens", "8"]
    arguments += ["--specs", "threshold:tau=0.9@dual", "--parts", "answers", "copies"]
    out = tmp_path / "page.md"
    judge.main([*arguments, "--out", str(out)])
    rows = (tmp_path / "run/answers.jsonl").read_text()
    assert len(rows.splitlines()) == 4
    text = out.read_text()
    [parent] = [line for line in text.splitlines() if line.startswith("| `parent` |") and line.count("|") > 5]
    assert "| +0.000 | 100.0% |" in parent
    assert "- `threshold:tau=0.9@dual`: likelihood within 0.5 nats of the parent's" in text
    judge.main([*arguments, "--out", str(out)])
    assert (tmp_path / "run/answers.jsonl").read_text() == rows
    assert out.read_text().splitlines()[6:] == text.splitlines()[6:]


def test_answers_of_another_tokenizer_are_judged_as_texts(tmp_path: Path) -> None:
    """A parent of bytes: the answer is its bytes, and its likelihood is that of the text after the parent's prompt."""
    parent = pardec.load("tiny-llama-bytes", device="cpu", dtype="float32")
    model = pardec.load("tiny-dream", device="cpu", dtype="float32")
    assert judge.encoded_alike(model, pardec.load("tiny-llama", device="cpu"))
    assert not judge.encoded_alike(parent, model)
    answer = model.tokenizer("9 cups", add_special_tokens=False)["input_ids"]
    assert parent.tokenizer.decode(judge.in_tokens_of(parent, model, answer)) == "9 cups"
    assert judge.in_tokens_of(model, model, answer) == answer

    asked = "Tom has 8 cups. He loses 3. How many cups does Tom have now?"
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "page.md"
    prompts.write_text(json.dumps({"turns": [asked]}) + "\n")
    arguments = ["--parent", "tiny-llama-bytes", "--model", str(ROOT / "models/embedded/tiny-dream")]
    arguments += ["--prompts", str(prompts), "--run", str(tmp_path / "run"), "--count", "1", "--max-new-tokens", "16"]
    judge.main([*arguments, "--specs", "sequential", "--parts", "answers", "--out", str(out)])
    _, row = map(json.loads, (tmp_path / "run/answers.jsonl").read_text().splitlines())
    assert parent.tokenizer.decode(row["answer"]) == model.generate(asked, max_new_tokens=16).text[0]
    assert row["nats"] == pytest.approx(judge.nats(parent, chat_ids(parent, asked), row["answer"]))
    assert "A masked diffusion model" in out.read_text()
    assert "answers are compared as texts" in out.read_text()
