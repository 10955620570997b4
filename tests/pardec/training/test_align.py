"""A drafter is trained further on requests that it served: rows of every form, a new folder, and refusals."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import pardec
from pardec.models.draft_modules.load import load_draft_module
from pardec.models.errors import SpecError
from pardec.training.align import Aligned, Alignment, align
from pardec.training.losses import loss
from pardec.training.networks import KINDS, Options, Target
from pardec.training.run import RATE, Plan
from pardec.training.served import served

Cli = Callable[..., tuple[int, str, str]]
SHORT = ("--steps", "2", "--batch", "200", "--drafts", "2", "--validation", "2")


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Plain rows of ids."""
    file = tmp_path_factory.mktemp("served") / "rows.jsonl"
    lines = [{"prompt": list(range(20 + n, 30 + n)), "answer": list(range(40, 60 + n % 3))} for n in range(8)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def test_what_generate_wrote_aligns_a_drafter_into_a_new_folder(cli: Cli, model: pardec.Model, tmp_path: Path) -> None:
    prompts, file, out = tmp_path / "prompts.jsonl", tmp_path / "rows.jsonl", tmp_path / "out"
    problems = pardec.task("arithmetic").problems(n=6)
    prompts.write_text("".join(json.dumps({"prompt": problem.prompt}) + "\n" for problem in problems))
    assert cli("generate", "tiny-llama", "--prompts", prompts, "-o", file, "--device", "cpu", "--batch-size", 6)[0] == 0
    command = ("align", "tiny-llama", "--drafter", "tiny-llama-eagle", "--rows", file, *SHORT, "--out")
    code, text, err = cli(*command, out)
    assert code == 0, err
    assert [line.split(":")[0] for line in text.splitlines()] == ["before", "after", f"wrote {out}"]
    assert "2 steps on 5 rows; 1 held out" in err
    module = load_draft_module(out, model.network, kind="eagle")
    assert module.states.layers == (0, 1, 2)
    card = json.loads((out / "card.json").read_text())
    assert (card["recipe"]["script"], card["recipe"]["started from"]) == ("pardec align", "tiny-llama-eagle")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "prompts.jsonl", "rows.jsonl"]

    code, _, err = cli(*command, out)
    assert (code, f"--out {out} exists" in err) == (2, True)
    again = ("align", "tiny-llama", "--drafter", out, "--rows", file, *SHORT, "--out", out)
    assert "is the drafter itself" in cli(*again)[2]
    code, text, _ = cli(*again, "--overwrite", "--json", "--quiet")
    result = json.loads(text)
    assert (code, result["steps"], result["out"]) == (0, 2, str(out))
    assert result["before"]["length"] >= 1


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_aligned_where_it_was_wrong(kind: str, cli: Cli, rows: Path, tmp_path: Path) -> None:
    code, text, err = cli(
        *("align", "tiny-llama", "--drafter", f"tiny-llama-{kind}", "--rows", rows),
        *(*SHORT, "--wrong-only", "--loss", "lk_hybrid:3", "--out", tmp_path / "out", "--json", "--quiet"),
    )
    assert code == 0, err
    result = json.loads(text)
    assert (result["rows"], result["validation"]) == (6, 2)
    assert result["after"]["rounds"] > 0


def test_positions_that_are_right_do_not_count_with_wrong_only(model: pardec.Model) -> None:
    target = Target(model.network)
    normed = torch.randn(12, model.network.width, generator=torch.Generator().manual_seed(0)).to(target.dtype)
    best = torch.nn.functional.linear(normed, target.head).argmax(-1)
    wrong = best.clone()
    wrong[:3] = (wrong[:3] + 1) % len(target.head)
    values = {}
    for only in (False, True):
        network = KINDS["medusa"](target, Options(heads=1, wrong_only=only))
        values[only] = [
            float(network.compare(normed, target.head, normed, labels, loss(name))[0])
            for labels in (best, wrong)
            for name in ("ce", "jsd:0.5")
        ]
        assert network.compare(normed, target.head, normed, wrong, loss("ce"))[1] == 0.75
    assert values[True][:2] == [0, 0]
    assert 0 < values[True][2] < values[False][2]


def test_rows_are_text_messages_or_ids_and_a_line_in_writing_is_left_out(model: pardec.Model, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    text = model.tokenizer("Tom has 3 cups.")["input_ids"]
    lines: list[dict[str, object]] = [
        {"prompt": "Tom has 3 cups.", "answer": [5, 6, 7]},
        {"prompt": text, "tokens": [5, 6, 7], "text": "?", "run": {"model": "tiny-llama"}},
        {"prompt": text, "answer": "3 cups"},
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"prompt": [1, 2')
    first, second, third = served(model.network, [file])[str(file)]
    assert first == second == (text, [5, 6, 7])
    assert model.tokenizer.decode(third[1]) == "3 cups"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("", "has no answer of two tokens or more"),
        ('{"prompt": [5, 6], "answer": [7]}\n', "has no answer of two tokens or more"),
        ('{"prompt": "a"}\n', "line 1 has no answer, only prompt"),
        ("{\n{}\n", "line 1 is not JSON"),
        ("[1]\n", "line 1 is not an object"),
        ('{"prompt": [5, 999], "answer": [7, 8]}\n', "the prompt of .* outside the vocabulary of 361"),
        ('{"prompt": [5, 6], "answer": [7, -8]}\n', "the answer of .* outside the vocabulary of 361"),
        ('{"prompt": "a", "tokens": [5, 6], "run": {"model": "tiny-dream"}}\n', "answered by tiny-dream"),
    ],
)
def test_rows_that_do_not_fit_are_refused(lines: str, message: str, model: pardec.Model, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(lines)
    with pytest.raises(SpecError, match=message):
        served(model.network, [file])


@pytest.mark.parametrize(
    ("target", "drafter", "more", "message"),
    [
        ("tiny-llama", "smollm2-eagle", (), "the target has layers 0..3"),
        ("tiny-llama", "tiny-llama-eagel", (), "did you mean 'tiny-llama-eagle'"),
        ("tiny-dream", "tiny-llama-eagle", (), "tiny-dream fills masks"),
        ("tiny-llama", "tiny-llama-draft", (), "no known kind of draft module"),
        ("tiny-llama", "tiny-llama-eagle", ("--minutes", "1"), "--steps and --minutes are both given"),
        ("tiny-llama", "tiny-llama-eagle", ("--loss", "fkll"), "unknown loss 'fkll' (did you mean 'fkl'?)"),
    ],
)
def test_a_drafter_that_does_not_fit_is_refused(
    target: str, drafter: str, more: tuple[str, ...], message: str, cli: Cli, rows: Path, tmp_path: Path
) -> None:
    code, text, err = cli(
        "align", target, "--drafter", drafter, "--rows", rows, *SHORT, *more, "--out", tmp_path / "out"
    )
    assert (code in (1, 2), text) == (True, "")
    assert message in err, err
    assert not (tmp_path / "out").exists()


def test_one_prompt_is_not_enough_and_no_other_folder_is_replaced(cli: Cli, rows: Path, tmp_path: Path) -> None:
    one, out = tmp_path / "one.jsonl", tmp_path / "out"
    one.write_text(rows.read_text().splitlines()[0] + "\n")
    command = ("align", "tiny-llama", "--drafter", "tiny-llama-eagle", *SHORT, "--out", out)
    assert "the rows have one prompt" in cli(*command, "--rows", one)[2]
    assert "No such file" in cli(*command, "--rows", tmp_path / "none.jsonl")[2]
    out.mkdir()
    (out / "README.md").write_text("mine")
    assert "is not the folder of a drafter" in cli(*command, "--rows", rows, "--overwrite")[2]
    assert (out / "README.md").read_text() == "mine"


def test_answers_alone_are_learned_at_a_tenth_of_the_rate(
    model: pardec.Model, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    def prepare(target: object, files: object, plan: Plan, chosen: dict[str, Any], **more: object) -> None:
        asked.update(chosen, rate=plan.rate, loss=plan.loss, validation=plan.validation)
        raise InterruptedError

    monkeypatch.setattr("pardec.training.align.prepare", prepare)
    with pytest.raises(InterruptedError):
        align(model, "tiny-llama-eagle", Alignment([rows], tmp_path / "other"))
    assert asked["rate"] == pytest.approx(RATE["eagle"] / 10)
    assert (asked["prompt_share"], asked["ramp"]) == (0, (0, 0))
    assert (asked["loss"], asked["wrong_only"]) == ("fkl", False), "as published"
    assert asked["validation"] == 2, "a quarter of eight rows"
    with pytest.raises(InterruptedError):
        align(model, "tiny-llama-eagle", Alignment([rows], tmp_path / "other", loss="tvd", wrong_only=True, rate=0.5))
    assert (asked["loss"], asked["wrong_only"], asked["rate"]) == ("tvd", True, 0.5)


def test_a_drafter_is_measured_before_it_learns_and_after(
    model: pardec.Model, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    run = SimpleNamespace(network=0, states=0, validation=[1], learning=[1, 2, 3], step=7, acceptance="after")
    run.train = lambda: order.append("train")
    before = SimpleNamespace(rounds=5)
    monkeypatch.setattr("pardec.training.align.prepare", lambda *_, **__: run)
    monkeypatch.setattr("pardec.training.align.measure", lambda *_: order.append("measure") or before)
    done = align(model, "tiny-llama-eagle", Alignment([rows], tmp_path / "other"))
    assert order == ["measure", "train"]
    assert done == Aligned(before, "after", 3, 1, 7, tmp_path / "other")  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.seeds("arXiv:2310.07177")
def test_on_a_stream_that_drifts_a_drafter_that_goes_on_learning_is_accepted_more(
    cli: Cli, model: pardec.Model, rows: Path, tmp_path: Path
) -> None:
    """Texts that no task has. The frozen drafter is held against what it becomes on other prompts of the stream."""
    with pytest.MonkeyPatch.context() as patched:
        test_answers_alone_are_learned_at_a_tenth_of_the_rate(model, rows, tmp_path, patched)
        test_a_drafter_is_measured_before_it_learns_and_after(model, rows, tmp_path, patched)
    test_positions_that_are_right_do_not_count_with_wrong_only(model)
    draw = random.Random(0)
    names, things = ("Ann", "Tom", "Mia", "Ben", "Zoe"), ("cups", "plums", "books", "pens")
    stream = [f"{draw.choice(names)} sees {draw.randint(2, 90)} {draw.choice(things)} and" for _ in range(36)]
    prompts, file, out = tmp_path / "prompts.jsonl", tmp_path / "rows.jsonl", tmp_path / "out"
    prompts.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in stream[:24]))
    served_ = ("generate", "tiny-llama", "--prompts", prompts, "-o", file, "--max-new-tokens", 32, "--batch-size", 12)
    assert cli(*served_, "--device", "cpu")[0] == 0
    command = ("align", "tiny-llama", "--drafter", "tiny-llama-eagle", "--rows", file, "--out", out)
    assert cli(*command, "--steps", 16, "--batch", 600, "--validation", 6)[0] == 0
    plain = model.generate(stream[24:], sampler="sequential", max_new_tokens=32)
    frozen, aligned = (
        model.generate(stream[24:], sampler=f"eagle:name={name},k=4", max_new_tokens=32)
        for name in ("tiny-llama-eagle", out)
    )
    assert frozen.tokens == plain.tokens == aligned.tokens
    assert frozen.acceptance_length is not None
    assert aligned.acceptance_length > 1.05 * frozen.acceptance_length
