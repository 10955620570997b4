"""`benchmarks/text_claims.py`: its qualities, paired settings, a whole run on embedded models, and the page."""

from __future__ import annotations

import json
import math
import threading
from pathlib import Path

import claims
import masked_answers
import pytest
import text_claims

import pardec
from pardec.training.texts import chat_ids

ROOT = Path(__file__).resolve().parents[1]

MODEL = ROOT / "models" / "embedded" / "tiny-dream"
ASKED = ["Tom has 8 cups. He loses 3. How many cups does Tom have now?", "Repeat this list: ant bee cat."]


def test_agreement_counts_the_longer_answer() -> None:
    model = pardec.load("tiny-dream", device="cpu", dtype="float32")
    end = next(iter(model.language_model.decoding_config.eos_ids))
    quality = text_claims.agreement(model, [{"problem": "0", "tokens": [7, 8, 9, end, 7]}])
    for tokens, share in (([7, 8, 9, end, 5], 1), ([7, 5, 9, end], 2 / 3), ([7, end, 9], 1 / 3), ([7, 8, 9, 6], 3 / 4)):
        assert quality({"problem": "0", "tokens": tokens}) == pytest.approx(share)


def test_likelihood_is_the_parents_and_zero_without_an_answer(tmp_path: Path) -> None:
    model, parent = (pardec.load(name, device="cpu", dtype="float32") for name in ("tiny-dream", "tiny-llama"))
    file = tmp_path / "likelihood.jsonl"
    quality = text_claims.likelihood(parent, model, ASKED, file)
    end = next(iter(model.language_model.decoding_config.eos_ids))
    nats = masked_answers.nats(parent, chat_ids(parent, ASKED[1]), [7, 8])
    for _ in range(2):
        assert quality({"problem": "1", "tokens": [7, 8, end, 9]}) == pytest.approx(math.exp(nats or 0))
    assert quality({"problem": "1", "tokens": [end, 7]}) == 0
    assert len(file.read_text().splitlines()) == 2
    file.write_text(json.dumps([1, [7, 8], 0.25]) + "\n")
    assert text_claims.likelihood(parent, model, ASKED, file)({"problem": "1", "tokens": [7, 8]}) == 0.25


def test_variety_is_low_where_an_answer_repeats_itself() -> None:
    model = pardec.load("tiny-dream", device="cpu", dtype="float32")
    end = next(iter(model.language_model.decoding_config.eos_ids))
    quality = text_claims.variety(model)
    for tokens, share in (([7, 8, 9, 7, end, 5, 5], 1), ([7, 7, 7, 7, 7], 1 / 4), ([7, 8, 7, 8], 2 / 3), ([7, end], 1)):
        assert quality({"problem": "0", "tokens": tokens}) == pytest.approx(share)


def row(sampler: str, problem: int, forwards: int, score: float) -> dict[str, object]:
    costs = {"nfe": forwards, "tokens_fed": 0, "seconds": 0}
    fields = {"task": "answers", "index": problem, "error": None, "text": "", "tokens": [], "generated": 8}
    return {"sampler": sampler, "problem": str(problem), "score": score, **fields, **costs}


def test_settings_are_paired_on_the_prompts_that_both_have_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_claims, "LEAST", 2)
    loose, strict = (
        [row(name, problem, forwards, score) for problem in range(4)]
        for name, forwards, score in (("loose", 2, 0.0), ("strict", 4, 1.0))
    )
    loose[3]["score"] = 1.0  # on a prompt that the method lacks
    method = [row("method", problem, 3, 0.75) for problem in range(3)]
    rows = {"loose": loose, "strict": strict, "method": method, "late": method[:1]}
    found = text_claims.judged(rows, {"quality": lambda one: float(one["score"])}, ("loose", "strict"))
    assert {name: one.prompts for name, one in found.items()} == {"loose": 4, "strict": 4, "method": 3}
    assert not found["loose"].gains
    assert found["method"].gains["quality"].value == pytest.approx(0.25)  # 1/2 is the reference's at three forwards


def test_decoding_ends_when_the_minutes_are_over() -> None:
    reached = []
    with text_claims.limited(0.05 / 60):
        threading.Event().wait(20)
        reached.append("end")
    assert not reached
    with text_claims.limited(None):
        reached.append("end")
    assert reached


def test_the_page_keeps_its_other_sections(tmp_path: Path) -> None:
    page = tmp_path / "claims.md"
    committed = (ROOT / "benchmarks" / "claims.md").read_text()
    page.write_text(committed)
    claims.write(page, {})
    assert page.read_text() == committed
    claims.write(page, {"sjd": "new", "text-new": "more"})
    found, before = claims.sections(page.read_text()), claims.sections(committed)
    assert (found.pop("sjd"), found.pop("text-new")) == ("new", "more")
    assert found == {name: text for name, text in before.items() if name != "sjd"}


def test_a_run_writes_a_section_for_each_part_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_claims, "THRESHOLD", ("threshold:tau=0.9", "threshold:tau=0.5"))
    monkeypatch.setattr(text_claims, "answer_settings", lambda new: [*text_claims.THRESHOLD, "fixed:steps=4@dual"])
    monkeypatch.setattr(text_claims, "LEAST", 2)
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "claims.md"
    prompts.write_text("".join(json.dumps({"turns": [text]}) + "\n" for text in (ASKED[0], "left out", ASKED[1])))
    arguments = ["--model", str(MODEL), "--parent", "tiny-llama", "--prompts", str(prompts), "--run", str(tmp_path)]
    arguments += ["--count", "2", "--every", "2", "--max-new-tokens", "16", "--out", str(out)]
    text_claims.main(arguments)
    found = claims.sections(out.read_text())
    assert list(found) == ["text-answers", "text-template", "text-filler", "text-seconds", "Columns"]
    answers = found["text-answers"]
    assert "| `sequential` | 2 | 16.0 |" in answers
    assert "100.0 (100..100)" in answers
    assert "| `fixed:steps=4@dual` | 2 | 4.0 |" in answers
    assert "A masked diffusion model" in answers
    assert "--every 2" in answers
    assert "Not done" not in answers
    assert "prophet:start=" in found["text-template"]
    assert "| `sequential` | 2 |" in found["text-seconds"]
    assert "| 1.00 (1.00..1.00) |" in found["text-seconds"]
    timed = (tmp_path / "seconds.jsonl").read_text()
    assert [json.loads(line)[0] for line in timed.splitlines()].count("fixed:steps=4+eos@dual") == 2
    assert len(timed.splitlines()) == 4 * 2
    rows = sorted(tmp_path.glob("*/*/rows.jsonl"))
    before = [file.read_text() for file in rows]
    assert json.loads(before[0].splitlines()[0])["problem"] in {"0", "1"}
    monkeypatch.setattr(text_claims, "LEAST", 3)
    text_claims.main([*arguments, "--only", "answers", "seconds"])
    assert (tmp_path / "seconds.jsonl").read_text() == timed
    assert len(rows) == 4 + 5 + 6
    assert [file.read_text() for file in rows] == before
    assert "Not done on 3 prompts: `sequential`, " in claims.sections(out.read_text())["text-answers"]
