"""`--config FILE` and `--dry-run`: options from a file, and the plan of a run without reading weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pardec
from pardec.comparison import preview, tuning
from pardec.comparison.run import FORMAT, Folder, Run
from pardec.models.errors import SpecError

Cli = Callable[..., tuple[int, str, str]]

WRITTEN = {
    "yaml": "model: tiny-dream\ntask: lists\nsamplers: [threshold+eos, sequential]\nlimit: 3\nseeds: [0, 1]\n"
    "references: false\nmax-new-tokens: 8\nout:\n",
    "toml": 'model = "tiny-dream"\ntask = ["lists"]\nsampler = ["threshold+eos", "sequential"]\nlimit = 3\n'
    'seeds = "0,1"\n'
    "no_references = true\nmax_new_tokens = 8\n",
    "json": '{"model": "tiny-dream", "task": "lists", "samplers": ["threshold+eos", "sequential"], "limit": 3, '
    '"seeds": [0, 1], "references": false, "max_new_tokens": 8}',
}
BOMB = "samplers:\n- &a0 [a]\n" + "".join(f"- &a{at + 1} [{f'*a{at},' * 10}]\n" for at in range(12))  # 10^12 words


@pytest.fixture
def no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if weights are read."""

    def refused(*_: Any, **__: Any) -> None:
        raise AssertionError("weights are read")

    monkeypatch.setattr("pardec.api.load_any", refused)


@pytest.mark.usefixtures("no_weights")
@pytest.mark.parametrize("kind", list(WRITTEN))
def test_every_kind_of_file_asks_for_the_same_and_the_command_line_wins(cli: Cli, tmp_path: Path, kind: str) -> None:
    file = tmp_path / f"ask.{kind}"
    file.write_text(WRITTEN[kind])
    code, out, err = cli("compare", "--config", file, "--dry-run", "--json", "--limit", 2)
    made = json.loads(out)
    assert (code, err) == (0, "")
    assert made["model"] == "tiny-dream"
    assert made["seeds"] == [0, 1]
    assert made["rows"] == {"of_samplers": 8, "of_references": 0, "finished": 0, "to_do": 8}
    assert [one["sampler"] for one in made["samplers"]] == ["threshold+eos", "sequential"]
    assert (
        made["samplers"][0]["spec"] == "confidence:of=raw+threshold:tau=0.9,fall=0.0,relax=0.0+eos:reference=false@none"
    )
    assert made["samplers"][0]["arguments"]["max_new_tokens"] == 8
    other = json.loads(cli("compare", "tiny-llada", "--config", file, "-s", "fixed", "--dry-run", "--json")[1])
    assert (other["model"], [one["sampler"] for one in other["samplers"]]) == ("tiny-llada", ["fixed"])


@pytest.mark.usefixtures("no_weights")
@pytest.mark.parametrize(
    "wrong",
    [
        {"limit": True},
        {"seeds": (True,)},
        {"problem_seed": False},
        {"batch_size": 1.5},
        {"replays": True},
        {"cost_ratio": True},
        {"workers": True},
        {"executor": True},
        {"mask_id": True},
        {"max_new_tokens": True},
    ],
    ids=str,
)
def test_true_is_no_number_of_a_comparison(wrong: dict[str, Any]) -> None:
    arguments = {"limit": 1, "references": False, **wrong}
    with pytest.raises(pardec.SpecError, match=next(iter(wrong)).rstrip("s")) as caught:
        pardec.compare("tiny-dream", "lists", ["threshold"], **arguments)
    assert caught.value.hint


@pytest.mark.usefixtures("no_weights")
@pytest.mark.parametrize("name", ["budget", "confirm", "seed", "max_drop"])
@pytest.mark.parametrize("value", [True, "3"])
def test_true_is_no_number_of_a_search(name: str, value: Any) -> None:
    with pytest.raises(pardec.SpecError, match=f"{name} must be"):
        tuning.preview("tiny-dream", "lists", samplers=["threshold"], **{name: value})


@pytest.mark.usefixtures("no_weights")
@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.yaml", "limt: 3", "there is no option 'limt' (did you mean 'limit'"),
        ("a.yaml", "limt: 3", "options: activations, adapter, batch-size, block-length"),
        ("a.yaml", "seeds: {a: 1}", "'seeds' has nested options"),
        ("a.yaml", BOMB, "'samplers' is a nested list"),
        ("a.yaml", "task: !!pairs [a: 1]", "'task' is a nested list"),
        ("a.yaml", f"task: 0x{'f' * 6000}", "'task' is invalid"),
        ("a.yaml", "sampler: [a]\nsamplers: [b]", "'samplers' is set twice"),
        ("a.yaml", "sampler: a\nsampler: b", "it has 'sampler' twice; several values are written as a list"),
        ("a.json", '{"limit": 3, "limit": 5}', "it has 'limit' twice"),
        ("a.yaml", "a: [", "is not YAML"),
        ("a.yaml", "- 3", "is a list, not options"),
        ("a.json", "{", "cannot be read"),
        ("a.toml", "a", "cannot be read"),
        ("a.ini", "a", "ends in .ini"),
        ("a.yaml", "limit: many", "Invalid value for '--limit'"),
        ("a.yaml", "limit: true", "Invalid value for '--limit'"),
        ("a.yaml", "limit: 1.5", "Invalid value for '--limit'"),
        ("a.toml", "batch_size = true", "Invalid value for '--batch-size'"),
        ("a.json", '{"problem_seed": false}', "Invalid value for '--problem-seed'"),
        ("a.yaml", "max_new_tokens: true", "Invalid value for '--max-new-tokens'"),
        ("a.yaml", "temperature: true", "Invalid value for '--temperature'"),
        ("a.yaml", "seeds: [true]", "--seeds takes whole numbers"),
        ("a.yaml", "quiet: 3", "Invalid value for '--quiet'"),
        ("none.yaml", None, "cannot read"),
    ],
)
def test_what_a_file_gets_wrong_is_one_line_and_a_way_out(
    cli: Cli, tmp_path: Path, name: str, text: str | None, message: str
) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    code, out, err = cli("compare", "tiny-dream", "--task", "lists", "-s", "threshold", "--config", tmp_path / name)
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 2


@pytest.mark.usefixtures("no_weights")
def test_a_dry_run_says_it_all_to_a_reader_and_writes_nothing(cli: Cli, tmp_path: Path) -> None:
    arguments = ("compare", "tiny-dream", "--task", "lists", "-s", "preset:fast-dllm", "--limit", 3)
    code, out, _ = cli(*arguments, "--dry-run", "--out", tmp_path / "run")
    assert code == 0
    assert "task: lists, 3 problems" in out
    assert "threshold:tau=0.9,fall=0.0,relax=0.0@dual:refresh=0,reference=false" in out
    assert "max_new_tokens 256, block_length 32" in out
    assert "reference: oracle@dual" in out
    assert "rows: 9 to do, 0 finished; 3 of samplers, 6 of references" in out
    assert f"out: {tmp_path / 'run'}" in out
    assert not (tmp_path / "run").exists()
    code, _, err = cli(*arguments, "--dry-run", "--resume")
    assert (code, "needs the folder of a run" in err) == (2, True)


def test_a_dry_run_of_a_resumed_run_says_what_is_missing(cli: Cli, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    arguments: dict[str, Any] = {"limit": 2, "references": False, "max_new_tokens": 4, "out": out}
    pardec.compare(folder, "lists", "threshold", progress=False, device="cpu", **arguments)
    lines = (out / "rows.jsonl").read_text().splitlines(keepends=True)
    (out / "rows.jsonl").write_text(lines[0])
    before = {file: file.read_bytes() for file in out.rglob("*") if file.is_file()}
    rows = preview(folder, "lists", "threshold", resume=True, **arguments)["rows"]
    assert (rows["finished"], rows["to_do"]) == (1, 1)
    with pytest.raises(pardec.SpecError, match="holds a run already"):
        preview(folder, "lists", "threshold", **arguments)
    with pytest.raises(pardec.SpecError, match="holds a run with other settings"):
        preview(folder, "lists", "fixed", resume=True, **arguments)
    assert {file: file.read_bytes() for file in out.rglob("*") if file.is_file()} == before


@pytest.mark.usefixtures("no_weights")
def test_tune_tells_its_candidates_and_reads_a_file_too(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "ask.yaml"
    file.write_text("model: tiny-dream\ntask: lists\nsamplers: [factor+eos]\nbudget: 40\nblock_lengths: [4, 8]\n")
    code, out, err = cli("tune", "--config", file, "--dry-run", "--confirm", 7, "--json")
    made = json.loads(out)
    assert (code, err) == (0, "")
    assert [(one["sampler"], one["block_length"]) for one in made["candidates"][:2]] == [
        ("factor+eos", 4),
        ("factor+eos", 8),
    ]
    assert made["baseline"] == "sequential+eos"
    assert made["problems"] == {"searched": 20, "confirmed": 7}
    text = cli("tune", "--config", file, "--dry-run")[1]
    assert "candidate: factor:f=2.0+eos in blocks of 8" in text
    assert "search: 40 decodes at most, 8 candidates, 2 rungs" in text


@pytest.mark.usefixtures("no_weights")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("tune", "tiny-dream", "--task", "lists", "-s", "sjd"), "is for autoregressive models"),
        (
            ("tune", "tiny-dream", "--task", "lists", "--cache", "duall"),
            "there is no cache 'duall' (did you mean 'dual'?)",
        ),
        (("tune", "tiny-dream", "--task", "lists", "-n", "0"), "--max-new-tokens must be a whole number of at least 1"),
        (("tune", "tiny-dream", "--task", "lits"), "did you mean 'lists'"),
        (("tune", "tiny-mar", "--task", "classes"), "draws vectors"),
        (("compare", "tiny-dream", "--task", "lists", "-s", "sjd"), "is for autoregressive models"),
        (("compare", "tiny-dream", "--task", "lists", "-s", "threshold", "--device", "cudda"), "cudda"),
        (("compare", "tiny-dream", "--task", "lists", "-s", "threshold", "--dtype", "float33"), "float33"),
        (("compare", "tiny-dream", "--task", "lists", "-s", "threshold", "--quantize", "int3"), "int3"),
        (("compare", "tiny-dream", "--task", "lists", "-s", "threshold", "--executor", "locl"), "did you mean 'local'"),
        (("tune", "tiny-dream", "--task", "lists", "--device", "cudda"), "cudda"),
        (("compare", "tiny-dream", "--prompts", "none.jsonl", "-s", "threshold"), "cannot read prompts"),
        (("compare", "tiny-dream", "--task", "lists", "-s", "threshold", "--scorer", "exact"), "without prompts"),
    ],
)
def test_what_can_be_told_before_weights_are_read_is(
    cli: Cli, tmp_path: Path, arguments: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = cli(*arguments, "--out", "run")
    assert code in (1, 2)
    assert out == ""
    assert message in err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "damage", [{"generate": 0.5}, {"samplers": [1]}, {"samplers": [{}]}, {"tasks": ["x"]}, {"tasks": 1}]
)
def test_a_run_whose_config_is_damaged_is_told_so(tmp_path: Path, damage: dict[str, Any]) -> None:
    whole = {"format": FORMAT, "generate": {}, "tasks": [{"name": "lists"}], "samplers": []}
    (tmp_path / "config.json").write_text(json.dumps(whole | damage))
    with pytest.raises(SpecError, match=r"config\.json is damaged"):
        Folder(tmp_path, whole, print).existing(resume=True)


def test_a_key_that_is_a_path_leads_nowhere(tmp_path: Path) -> None:
    asked: Any = {"limit": 1, "max_new_tokens": 4, "references": False, "replays": 0, "device": "cpu"}
    pardec.compare("tiny-dream", "arithmetic", "threshold", out=tmp_path / "run", **asked)
    pardec.load("tiny-dream").generate("Ann has 8 cups.", max_new_tokens=2, stop_ids=[]).save(tmp_path / "elsewhere")
    rows = tmp_path / "run" / "rows.jsonl"
    first = json.loads(rows.read_text().splitlines()[0])
    rows.write_text(json.dumps({**first, "key": "../../elsewhere"}) + "\n")
    assert dict(Run.load(tmp_path / "run").traces) == {}
