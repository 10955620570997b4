"""`compare`: its figures equal those of `generate`; failures are reported row by row."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

import pardec
from pardec.io.jsonl import RowsFile
from pardec.models.errors import SpecError
from pardec.samplers.masked.loop import MaskedLoop
from pardec.samplers.registry import resolve
from pardec.tasks import FileTask

from .conftest import SPECS, keys, untimed

Small = Callable[..., pardec.Table]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rows_are_those_of_generate_and_figures_those_of_its_result(
    small: Small, model: pardec.Model, prompts: Path, tmp_path: Path, temperature: float
) -> None:
    table = small(model=model, out=tmp_path / "run", temperature=temperature, seeds=(3,), references=False)
    problems = FileTask(prompts).problems(n=50)
    task = FileTask(prompts, scorer="number")
    texts: list[Any] = [problem.prompt for problem in problems]
    rows = RowsFile(tmp_path / "run" / "rows.jsonl").rows.values()
    for figures, spec in zip(table.rows, SPECS, strict=True):
        result = model.generate(texts, sampler=spec, max_new_tokens=6, seed=3, temperature=temperature)
        mine = sorted((row for row in rows if row["sampler"] == spec), key=lambda row: row["index"])
        for at, row in enumerate(mine):
            start = result.prompts[at]
            steps = result.trace.forward[at, start : start + len(result.tokens[at])].tolist()
            assert row["tokens"] == result.tokens[at]
            assert row["text"] == result.text[at]
            assert (row["nfe"], row["generated"]) == (result.nfe[at], result.generated[at])
            assert (row["tokens_fed"], row["finish"]) == (result.tokens_fed[at], result.finish[at])
            assert (row["steps"], row["nfe_to_end"]) == (steps, max(steps) + 1)
            assert row["score"] == task.score(problems[at], result.text[at])
            assert len(row["scores"]) == len(row["tokens"])
        scores = [task.score(problem, text) for problem, text in zip(problems[:9], result.text, strict=False)]
        assert figures["accuracy"] == pytest.approx(sum(filter(None, scores)) / 9)
        assert figures["nfe"] == pytest.approx(sum(result.nfe) / 10)
        assert figures["tokens_per_forward"] == pytest.approx(result.tokens_per_forward)
        assert figures["spec"] == result.spec
        assert figures["exact"] == result.exact


def test_references_are_decoded_and_not_listed(small: Small, model: pardec.Model, tmp_path: Path) -> None:
    table = small(model=model, out=tmp_path / "run", seeds=(0, 1))
    assert [row["sampler"] for row in table.rows] == list(SPECS)
    rows = RowsFile(tmp_path / "run" / "rows.jsonl").rows.values()
    references = {row["sampler"]: row["spec"] for row in rows if row["reference"]}
    assert set(references) == {"oracle+eos", "oracle@dual", "sequential+eos"}
    assert sum(row["reference"] for row in rows) == 3 * 10  # with the first seed only
    # The oracle reaches the text of `sequential`, so its forwards are few and its answers those.
    ordered = sorted(rows, key=lambda row: row["index"])
    events = {name: [row for row in ordered if row["sampler"] == name] for name in references}
    for name in ("oracle+eos", "oracle@dual"):
        assert [row["tokens"] for row in events[name]] == [row["tokens"] for row in events["sequential+eos"]]
    threshold = table.rows[0]
    mine = [row["nfe"] for row in rows if row["sampler"] == SPECS[0]]
    floor = [row["nfe"] for row in events["oracle+eos"]]
    assert threshold["floor_share"] == pytest.approx(2 * sum(floor) / sum(mine))
    assert (threshold["problems"], threshold["seeds"], threshold["failed"]) == (10, 2, 0)


def test_a_sequential_that_is_asked_for_is_the_reference(small: Small, model: pardec.Model, tmp_path: Path) -> None:
    table = small(model=model, out=tmp_path / "run", samplers=["sequential", "oracle", "threshold:tau=0.1"])
    assert len(keys(tmp_path / "run")) == 3 * 10
    first, oracle, _ = table.rows
    assert (first["agreement"], first["identical"], first["speed_up"]) == (1.0, 1.0, 1.0)
    assert (oracle["floor_share"], oracle["identical"]) == (1.0, 1.0)


def test_sampling_has_no_references_and_says_so(small: Small, model: pardec.Model) -> None:
    table = small(model=model, temperature=1.0)
    assert {row["floor_share"] for row in table.rows} == {None}
    assert {row["agreement"] for row in table.rows} == {None}
    notes = [note for note in table.notes if "agreement" in note]
    assert notes == [f"{spec}: no agreement and no floor, since it samples" for spec in SPECS]


def test_an_autoregressive_model_has_agreement_and_no_floor() -> None:
    table = pardec.compare("tiny-llama", "arithmetic", ["lookup"], limit=2, max_new_tokens=4, device="cpu")
    assert (table.rows[0]["identical"], table.rows[0]["floor_share"]) == (1.0, None)


# --- failures ---


def test_a_sampler_that_the_model_cannot_run_is_failed_rows_and_never_fast_ones(
    small: Small, model: pardec.Model
) -> None:
    table = small(model=model, samplers=["threshold", "threshold@block"])
    good, bad = table.rows
    assert (good["failed"], good["error"]) == (0, None)
    assert bad["failed"] == 10
    assert bad["error"].startswith("SpecError: the cache 'block' is for block-causal models")
    kept = ("sampler", "spec", "exact", "problems", "seeds", "failed", "error", "by_task")
    assert {name: value for name, value in bad.items() if name not in kept and value is not None} == {}
    assert any("threshold@block: 10 rows failed" in note for note in table.notes)
    assert [row["sampler"] for row in table.frontier()] == ["threshold"]


def test_only_the_prompt_at_fault_fails(small: Small, model: pardec.Model, tmp_path: Path) -> None:
    texts = ["Ann.", "Tom has 3 cups.", "cups " * 200, "Sara.", "Ben."]
    table = small(model=model, prompts=texts, out=tmp_path / "run", batch_size=5, references=False)
    rows = RowsFile(tmp_path / "run" / "rows.jsonl").rows.values()
    assert sorted({row["index"] for row in rows if row["error"] is not None}) == [2]
    assert {row["failed"] for row in table.rows} == {1}
    assert {row["batch"]["rows"] for row in rows if row["error"] is None} == {4}  # the others are decoded together
    failed = next(row for row in rows if row["error"] is not None)
    assert "row 0 needs" in failed["error"]
    assert {failed[name] for name in ("text", "tokens", "nfe", "generated", "seconds", "batch", "score")} == {None}


def test_an_interrupt_is_no_failure_and_rows_before_it_are_kept(
    small: Small, model: pardec.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, left = MaskedLoop.leave, iter(range(4))

    def leave(loop: MaskedLoop, over: Any) -> Any:
        if over.any() and next(left, None) is None:
            raise KeyboardInterrupt
        return real(loop, over)

    monkeypatch.setattr(MaskedLoop, "leave", leave)
    with pytest.raises(KeyboardInterrupt):
        small(model=model, out=tmp_path / "run", references=False)
    rows = RowsFile(tmp_path / "run" / "rows.jsonl").rows.values()
    assert 0 < len(rows) < 10  # of the first stream
    assert {row["error"] for row in rows} == {None}


def test_what_fails_under_way_is_decoded_again_in_batches_and_then_alone(
    small: Small, model: pardec.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = MaskedLoop.__init__

    def begin(loop: MaskedLoop, network: Any, sampler: Any, request: Any, **more: Any) -> None:
        if any("Ann has 4" in network.tokenizer.decode(row) for row in request.canvases):
            raise MemoryError("no room")
        real(loop, network, sampler, request, **more)

    monkeypatch.setattr(MaskedLoop, "__init__", begin)
    table = small(model=model, out=tmp_path / "run", samplers=["threshold"], references=False, seeds=(0,))
    assert table.rows[0]["failed"] == 1
    made = RowsFile(tmp_path / "run" / "rows.jsonl").rows.values()
    rows = [row for row in made if row["error"] is None]
    assert [row["index"] for row in made if row["error"] is not None] == [4]
    assert sorted(row["index"] for row in rows) == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    assert {"MemoryError", "OutOfMemory"} & {table.rows[0]["error"].partition(":")[0]}
    assert {row["batch"]["rows"] for row in rows} == {10}  # one stream, which decodes the rows of a failed batch alone
    monkeypatch.undo()
    small(model=model, out=tmp_path / "whole", samplers=["threshold"], references=False)
    same = ("tokens", "nfe", "steps", "tokens_fed")
    whole = untimed(tmp_path / "whole")
    for key, row in untimed(tmp_path / "run").items():
        assert row["error"] is not None or [row[name] for name in same] == [whole[key][name] for name in same]


# --- speed ---


def test_rows_of_a_sampler_follow_each_other_in_one_batch(
    small: Small, model: pardec.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live: list[int] = []
    real = MaskedLoop.step

    def step(loop: MaskedLoop) -> Any:
        live.append(len(loop.canvas))
        return real(loop)

    monkeypatch.setattr(MaskedLoop, "step", step)
    out = tmp_path / "run"
    table = small(model=model, out=out, samplers=["threshold:tau=0.2"], references=False)
    rows = list(RowsFile(out / "rows.jsonl").rows.values())
    assert len({row["batch"]["id"] for row in rows}) == 1
    assert {row["batch"]["rows"] for row in rows} == {10}
    last = max(rows, key=lambda row: row["batch"]["seconds"])["batch"]
    steps = live[-last["forwards"] :]  # before them the batch that is not timed
    assert sum(steps) == sum(row["nfe"] for row in rows)
    assert max(steps) == 3
    assert all(count == 3 for count in steps[: steps.index(min(steps))])  # no place stays free before the last rows
    generated = sum(row["generated"] for row in rows)
    assert table.rows[0]["tokens_per_second"] == pytest.approx(generated / last["seconds"])
    assert table.rows[0]["seconds_per_forward"] == pytest.approx(last["seconds"] / last["forwards"])
    assert all(0 < row["seconds"] <= row["batch"]["seconds"] for row in rows)


def test_the_first_batch_of_a_sampler_is_decoded_once_more_before_it_is_timed(
    small: Small, model: pardec.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = pardec.Model.serve, []

    def serve(self: pardec.Model, arguments: Any, **more: Any) -> Any:
        calls.append((str(arguments[0].sampler.spec), [tuple(call.request.canvases[0].tolist()) for call in arguments]))
        return real(self, arguments, **more)

    monkeypatch.setattr(pardec.Model, "serve", serve)
    monkeypatch.setattr("pardec.executors.STREAM", 2)
    small(model=model)
    for spec in SPECS:
        mine = [prompts for sampler, prompts in calls if sampler == str(resolve(spec, "masked").spec)]
        assert mine[0] == mine[1][:3]
        assert [len(prompts) for prompts in mine] == [3, 6, 4]
    oracle = str(resolve("oracle+eos", "masked").spec)
    assert [sampler for sampler, _ in calls].count(oracle) == 2  # a reference is not timed
    order = [sampler for sampler, _ in calls[-5:]]
    assert len(set(order)) == 5  # the samplers take turns


def test_a_sampler_whose_rows_cannot_follow_each_other_says_so(model: pardec.Model, tmp_path: Path) -> None:
    arguments: dict[str, Any] = {
        "limit": 5,
        "batch_size": 2,
        "max_new_tokens": 4,
        "device": "cpu",
        "out": tmp_path / "run",
    }
    pardec.compare(model, "arithmetic", ["threshold", "oracle"], references=False, **arguments)
    rows = RowsFile(tmp_path / "run" / "rows.jsonl").rows.values()
    batches = {row["batch"]["id"]: row["batch"] for row in rows if row["sampler"] == "oracle"}
    assert sorted(batch["rows"] for batch in batches.values()) == [1, 2, 2]
    table = pardec.comparison.Table(pardec.comparison.Run.load(tmp_path / "run"))
    assert [note for note in table.notes if "whole batches" in note] == [
        "oracle: its speed was measured on whole batches, since sequential decodes the rows of a request beforehand"
    ]


# --- the folder ---


def test_a_run_that_is_done_is_read_and_not_made_again(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = small(out=tmp_path / "run")
    whole = (tmp_path / "run" / "rows.jsonl").read_bytes()
    monkeypatch.setattr(pardec.Model, "serve", lambda *_, **__: pytest.fail("nothing was left to do"))
    after = small(out=tmp_path / "run", resume=True)
    assert after.rows == before.rows
    assert (tmp_path / "run" / "rows.jsonl").read_bytes() == whole


def test_what_is_missing_or_torn_is_made_on_resume(
    small: Small, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    small(out=out)
    whole, lines = untimed(out), (out / "rows.jsonl").read_bytes().splitlines(keepends=True)
    (out / "rows.jsonl").write_bytes(b"".join(lines[:7]) + lines[20] + lines[7][:100])
    small(out=out, resume=True)
    assert capsys.readouterr().err.count("was cut short") == 1
    assert untimed(out) == whole
    assert sorted(keys(out)) == sorted(set(keys(out)))


def test_another_checkpoint_in_the_same_place_is_refused(small: Small, folder: Path, tmp_path: Path) -> None:
    model, out = Path(shutil.copytree(folder, tmp_path / "model")), tmp_path / "run"
    arguments: dict[str, Any] = {"model": str(model), "samplers": ["sequential"], "references": False, "out": out}
    small(**arguments)
    config = json.loads((out / "config.json").read_text())
    small(resume=True, **arguments)
    weights = load_file(model / "model.safetensors")
    save_file({**weights, "model.norm.weight": 2 * weights["model.norm.weight"]}, model / "model.safetensors")
    with pytest.raises(SpecError, match=f"checkpoint '{config.pop('checkpoint')}' there, "):
        small(resume=True, **arguments)
    (out / "config.json").write_text(json.dumps(config))  # that of an earlier version
    small(resume=True, **arguments)


def test_a_changed_config_is_refused_with_the_difference(small: Small, tmp_path: Path) -> None:
    out = tmp_path / "run"
    small(out=out)
    before = (out / "rows.jsonl").read_bytes()
    for change, words in (
        ({"max_new_tokens": 5}, "generate max_new_tokens 6 there, 5 now"),
        ({"samplers": ["threshold"]}, r"samplers \['threshold:tau=0.2\+eos', 'sequential@dual'\] there, \['thres"),
        ({"limit": 4}, "limit 50 there, 4 now"),
        ({"scorer": "exact"}, "task cups scorer 'number' there, 'exact' now"),
        ({"dtype": "float64"}, "dtype 'auto' there, 'float64' now"),
        ({"prompts": ["Tom."]}, "task cups problems 10 there, None now.*; task prompts problems None there, 1 now"),
    ):
        with pytest.raises(SpecError, match=words):
            small(out=out, resume=True, **change)
    assert (out / "rows.jsonl").read_bytes() == before


def test_prompts_may_move_but_neither_they_nor_their_scorer_may_change(
    small: Small, model: pardec.Model, prompts: Path, tmp_path: Path
) -> None:
    out, (first, second) = tmp_path / "run", (tmp_path / name / "p.jsonl" for name in "ab")
    for file in (first, second):
        file.parent.mkdir()
        file.write_text(prompts.read_text())
    (tmp_path / "mine.py").write_text("def rate(problem, text):\n    return 1\n")
    arguments: dict[str, Any] = {"model": model, "out": out, "samplers": ["threshold"], "references": False}
    arguments |= {"resume": True, "scorer": f"{tmp_path / 'mine.py'}:rate"}
    small(prompts=first, **arguments)
    small(prompts=second, **arguments)
    second.write_text(prompts.read_text().replace("Sara", "Anna"))
    with pytest.raises(SpecError, match="task p digest .* there, .* now"):
        small(prompts=second, **arguments)
    (tmp_path / "mine.py").write_text("def rate(problem, text):\n    return 0\n")
    with pytest.raises(SpecError, match="task p digest .* there, .* now"):
        small(prompts=first, **arguments)


def test_a_folder_with_something_in_it_is_left_alone(small: Small, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    for resume in (False, True):
        with pytest.raises(SpecError, match="is not empty, and holds no run"):
            small(out=tmp_path, resume=resume)
    assert [entry.name for entry in tmp_path.iterdir()] == ["notes.txt"]
    small(out=tmp_path / "run", resume=True, samplers=["threshold"], references=False)  # there is none yet: it begins
    with pytest.raises(SpecError, match="holds a run already") as caught:
        small(out=tmp_path / "run")
    assert "resume=True" in str(caught.value.hint)


def test_failed_rows_are_kept_until_they_are_to_be_tried_again(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, real = tmp_path / "run", pardec.Model.prepare

    def prepare(self: pardec.Model, prompt: Any, **more: Any) -> Any:
        if any("Ann has 4" in text for text in prompt):
            raise MemoryError("no room")
        return real(self, prompt, **more)

    monkeypatch.setattr(pardec.Model, "prepare", prepare)
    assert [row["failed"] for row in small(out=out).rows] == [1, 1]
    monkeypatch.undo()
    assert [row["failed"] for row in small(out=out, resume=True).rows] == [1, 1]
    assert [row["failed"] for row in small(out=out, resume=True, retry_failed=True).rows] == [0, 0]
    assert sorted(keys(out)) == sorted(set(keys(out)))
    small(out=tmp_path / "whole")
    assert untimed(out) == untimed(tmp_path / "whole")


def test_what_is_kept_can_be_replayed(small: Small, model: pardec.Model, tmp_path: Path) -> None:
    small(out=tmp_path / "run", replays=2, seeds=(0, 1), samplers=["threshold:tau=0.2"], references=False)
    run = pardec.comparison.Run.load(tmp_path / "run")
    rows = {row["key"]: row for row in run.rows}
    assert sorted((rows[key]["index"], rows[key]["seed"]) for key in run.traces) == [(0, 0), (1, 0)]
    for key, result in run.traces.items():
        row = rows[key]
        alone = model.generate(
            [pardec.task(run.config["tasks"][0]["file"]).problems(n=50)[row["index"]].prompt],
            sampler="threshold:tau=0.2",
            max_new_tokens=6,
            seed=result.seeds,
        )
        assert (result.tokens, result.nfe, result.text) == ([row["tokens"]], [row["nfe"]], [row["text"]])

        assert result.sequences.tolist() == alone.sequences.tolist()
        assert (result.trace.commit_step == alone.trace.commit_step).all()
        assert result.trace.fed == alone.trace.fed


def test_the_environment_names_no_path_of_the_machine(small: Small, tmp_path: Path) -> None:
    small(out=tmp_path / "run", samplers=["threshold"], references=False)
    content = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert "path" not in content
    assert content["pardec"] == pardec.__version__
    assert {"torch", "platform", "cpu_cores", "load_average"} <= set(content)


# --- misuse, before weights are read ---


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"samplers": []}, "no sampler is named"),
        ({"samplers": ["thresold"]}, "did you mean 'threshold'"),
        ({"samplers": ["threshold", "threshold:tau=0.9"]}, "are the same sampler"),
        ({"prompts": None, "scorer": None}, "no task and no prompts"),
        ({"prompts": None}, "a scorer is given without prompts"),
        ({"task": "arithmetics"}, "did you mean 'arithmetic'"),
        ({"task": ["lists", "lists"]}, "two tasks are called 'lists'"),
        ({"limit": 0}, "limit"),
        ({"limit": "8"}, "limit must be a whole number"),
        ({"replays": 1.5}, "replays must be a whole number"),
        ({"prompts": []}, "prompts is empty"),
        ({"samplers": (), "sampler": ["threshold"]}, "did you mean 'samplers'"),
        ({"batch_size": 0}, "batch_size must be a whole number of at least 1"),
        ({"seeds": (1, 1)}, "seeds must be distinct"),
        ({"temprature": 1.0}, "did you mean 'temperature'"),
        ({"temperature": -1.0}, "temperature must be at least 0"),
        ({"prompts": [{"text": "x"}]}, "prompt 0 is"),
        ({"resume": True}, "resume needs the folder of a run"),
        ({"executor": "torchrun"}, "torchrun executor needs a folder"),
        ({"executor": "spark"}, "unknown executor 'spark'"),
        ({"split": "test", "task": "lists"}, "unknown split 'test'"),
    ],
)
def test_misuse_is_refused_before_weights_are_read(
    small: Small, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], words: str
) -> None:
    monkeypatch.setattr("pardec.api.load", lambda *_, **__: pytest.fail("weights were read"))
    with pytest.raises(SpecError, match=words):
        small(**change)


def test_another_process_cannot_be_given_a_loaded_model(small: Small, model: pardec.Model, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="cannot send a loaded model"):
        small(model=model, executor="ray", out=tmp_path / "run")
