"""`benchmarks/text_claims.py`: its two qualities, a whole run on embedded models, and the page's sections."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest

import pardec
from pardec.training.texts import chat_ids

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

import claims  # noqa: E402
import masked_answers  # noqa: E402
import text_claims  # noqa: E402

del sys.path[0]
MODEL = ROOT / "models" / "embedded" / "tiny-dream"
ASKED = ["Tom has 8 cups. He loses 3. How many cups does Tom have now?", "Repeat this list: ant bee cat."]


def test_agreement_counts_the_longer_answer() -> None:
    model = pardec.load("tiny-dream", device="cpu", dtype="float32")
    end = next(iter(model.language_model.decoding_config.eos_ids))
    quality = text_claims.agreement(model, [{"problem": "0", "tokens": [7, 8, 9, end, 7]}])
    for tokens, share in (([7, 8, 9, end, 5], 1), ([7, 5, 9, end], 2 / 3), ([7, end, 9], 1 / 3), ([7, 8, 9, 6], 3 / 4)):
        assert quality({"problem": "0", "tokens": tokens}) == pytest.approx(share)


def test_likelihood_is_the_parents_and_zero_without_an_answer() -> None:
    model, parent = (pardec.load(name, device="cpu", dtype="float32") for name in ("tiny-dream", "tiny-llama"))
    quality = text_claims.likelihood(parent, model, ASKED)
    end = next(iter(model.language_model.decoding_config.eos_ids))
    nats = masked_answers.nats(parent, chat_ids(parent, ASKED[1]), [7, 8])
    assert quality({"problem": "1", "tokens": [7, 8, end, 9]}) == pytest.approx(math.exp(nats or 0))
    assert quality({"problem": "1", "tokens": [end, 7]}) == 0


def test_the_page_keeps_its_other_sections(tmp_path: Path) -> None:
    page = tmp_path / "claims.md"
    committed = (ROOT / "benchmarks" / "claims.md").read_text()
    page.write_text(committed)
    claims.write(page, {})
    assert page.read_text() == committed
    claims.write(page, {"sjd": "new", "text-answers": "more"})
    found, before = claims.sections(page.read_text()), claims.sections(committed)
    assert (found.pop("sjd"), found.pop("text-answers")) == ("new", "more")
    assert found == {name: text for name, text in before.items() if name != "sjd"}


def test_a_run_writes_a_section_for_each_part_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_claims, "METHODS", ("credit", "@dual"))
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "claims.md"
    prompts.write_text("".join(json.dumps({"turns": [text]}) + "\n" for text in ASKED))
    arguments = ["--model", str(MODEL), "--parent", "tiny-llama", "--prompts", str(prompts), "--run", str(tmp_path)]
    arguments += ["--count", "2", "--max-new-tokens", "16", "--points", "2", "--out", str(out)]
    text_claims.main(arguments)
    found = claims.sections(out.read_text())
    assert list(found) == ["text-likelihood", "text-agreement", "text-template", "text-filler", "Columns"]
    agreement = found["text-agreement"]
    assert "`sequential`: 100.0% in 16.0 forwards" in agreement
    assert "| `credit` |" in agreement
    assert "| `@dual` |" in agreement
    assert "A masked diffusion model" in agreement
    assert "*right* is the share of tokens" in agreement
    assert agreement != found["text-likelihood"]
    rows = sorted(tmp_path.glob("*/rows.jsonl"))
    before = [file.read_text() for file in rows]
    text_claims.main(arguments)
    assert len(rows) == 3
    assert [file.read_text() for file in rows] == before
    assert claims.sections(out.read_text()) == found
