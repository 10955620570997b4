"""`pardec advise`: candidates in turn, and the fastest that keeps the quality."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest

import pardec
from pardec.cli import run
from pardec.comparison import advise as advising
from pardec.comparison.advise import Timed, advise, candidates
from pardec.models.errors import SpecError
from pardec.requests import answer_warnings


def timed(spec: str, seconds: float, *, score: float | None, same: int) -> Timed:
    return Timed(spec, "greedy", 4, seconds, 40, 20, same, score)


def test_the_fastest_of_those_as_good_as_plain_decoding_is_chosen() -> None:
    plain = timed("sequential", 4, score=3, same=4)
    worse, relaxed, slow = (
        timed("a", 1, score=2, same=2),
        timed("b", 2, score=3, same=1),
        timed("c", 3.9, score=4, same=4),
    )
    assert advising._chosen([plain, worse, relaxed, slow]).spec == "b"
    assert advising._chosen([plain, worse, slow]).spec == "sequential"  # 3.9 s are not clearly fewer than 4
    failed = Timed("d", error="no")
    assert advising._chosen([plain, failed]).spec == "sequential"
    for row in (plain, worse, relaxed, slow):
        row.score = None
    assert advising._chosen([plain, worse, relaxed]).spec == "sequential"  # without scores the tokens have to be equal


def test_the_best_of_the_faster_is_named_where_it_loses_few_answers() -> None:
    plain = timed("sequential", 4, score=20, same=4)
    near, hasty, far = timed("a", 2, score=19, same=4), timed("b", 1, score=18, same=4), timed("c", 1, score=17, same=4)
    assert advising._close([plain, hasty, near, far], plain) is near
    assert advising._close([plain, far, timed("d", 3.9, score=20, same=4), Timed("e", error="no")], plain) is None


def test_a_sampler_that_loses_answers_is_not_advised(monkeypatch: pytest.MonkeyPatch) -> None:
    some = ("threshold:tau=0.01+eos", "threshold:tau=0.98+eos", "lookup")
    monkeypatch.setattr(advising, "CANDIDATES", {"masked": some})
    model = pardec.load("tiny-dream", device="cpu")
    found = advise(model, "chains-64", budget=0.01, beside="tiny-llama", loading={"device": "cpu"})
    plain, hasty, good, wrong = found.rows
    assert [row.prompts for row in (plain, hasty, good)] == [3, 3, 3]
    assert plain.score == good.score == 3
    assert hasty.score < 3
    assert wrong.error is not None
    assert found.spec == good.spec
    problems = pardec.task("chains-64").problems(split="train", n=3)
    alone = [
        model.generate(each.prompt, sampler=good.spec, max_new_tokens=pardec.task("chains-64").tokens)
        for each in problems
    ]
    assert good.forwards == sum(result.nfe[0] for result in alone)
    assert good.tokens == sum(result.generated[0] for result in alone)
    assert found.beside[1].prompts == 3
    assert any(note.startswith("plain decoding of tiny-llama is ") for note in found.notes)


def test_the_command_prints_one_spec_and_takes_prompts_without_answers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"Tom has {n} cups. He loses 2."}) + "\n" for n in (3, 4, 5)))
    assert run(["advise", "tiny-llama", "--prompts", str(file), "--budget", "1s", "-n", "6", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    exact = [row for row in document["rows"] if row["exact"] == "greedy"]
    assert len(exact) > 5
    assert all(row["same"] == row["prompts"] == 3 and row["score"] is None for row in exact)
    assert document["spec"] in [row["spec"] for row in document["rows"]]
    assert run(["advise", "tiny-llama", "--budget", "soon"]) == 2
    assert "--budget must be a time" in capsys.readouterr().err
    assert run(["advise", "smollm2"]) == 2
    assert "no prompts are given" in capsys.readouterr().err


def test_slow_candidates_are_in_the_table_without_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_warnings, "_SLOWER", 0.0)
    monkeypatch.setattr(answer_warnings, "_said", set())
    model = pardec.load("tiny-llama", device="cpu")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        advise(model, prompts=["Tom has 8 cups. He loses 2. How many are left?"] * 3, budget=0.1, max_new_tokens=24)
    assert not [str(each.message) for each in caught if each.category is answer_warnings.SlowDrafts]
    assert answer_warnings._said


def test_image_models_are_refused_and_drafters_are_those_of_the_target() -> None:
    with pytest.raises(SpecError, match="draws images"):
        candidates(pardec.load("tiny-llamagen", device="cpu"))
    specs = candidates(pardec.load("tiny-llama", device="cpu"))
    assert "eagle:name=tiny-llama-eagle" in specs
    assert not any("smollm2" in spec for spec in specs)
