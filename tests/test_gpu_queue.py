"""`scripts/gpu_queue`: entries run without a GPU, a failing entry leaves the others, and carried files arrive."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
from gpu_runs import page, parcels, run_queue
from gpu_runs.report import Report

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """No process is started to describe the machine; the dry run of a queue describes it."""
    monkeypatch.setattr(run_queue, "_machine", dict)


def queue(*arguments: str, cwd: Path = ROOT, timeout: float = 580) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHON": sys.executable}
    return subprocess.run(
        [str(cwd / "scripts/gpu_queue"), *arguments], env=environment, capture_output=True, text=True, timeout=timeout
    )


def test_dry_run_of_an_entry_leaves_its_results(tmp_path: Path) -> None:
    """The slow test runs the other entries; here their modules are imported."""
    for entry in run_queue.ENTRIES:
        assert callable(import_module(f"gpu_runs.{entry.module}").run)
    done = queue("--dry-run", "--only", "b", "--out", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads((tmp_path / "results.json").read_text())
    assert "torch" in results["machine"]
    entry = results["entries"]["b"]
    assert (entry["status"], f"b  done in {entry['seconds']:.0f} s" in done.stdout) == ("done", True)
    assert entry["line"]
    assert all(row["different"] == 0 for row in entry["rows"])
    assert {file.name for file in tmp_path.iterdir()} == {"results.json", "log.txt"}


@pytest.mark.slow
def test_dry_run_runs_every_entry(tmp_path: Path) -> None:
    done = queue("--dry-run", "--out", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads((tmp_path / "results.json").read_text())
    assert list(results["entries"]) == ["a", "b", "c", "d", "f", "g", "h", "e"]
    for letter, entry in results["entries"].items():
        assert entry["status"] == "done", entry
        assert f"{letter}  done in {entry['seconds']:.0f} s" in done.stdout
        assert entry["line"]
        assert entry["rows"]
        assert not [row for row in entry["rows"] if "error" in row or "not_measured" in row]
    assert {row["outcome"] for row in results["entries"]["a"]["rows"]} == {"passed", "skipped"}
    assert all(row["different"] == 0 for row in results["entries"]["b"]["rows"])
    assert {"plain", "transformers"} <= {row["loop"] for row in results["entries"]["c"]["rows"]}
    assert all(row["launches"] > 0 for row in results["entries"]["d"]["rows"])
    assert all(row["tokens_s"] > 0 for row in results["entries"]["h"]["rows"])
    assert all(row["apart"] < 0.05 for row in results["entries"]["f"]["rows"])
    files = list(tmp_path.iterdir())
    assert len(files) <= run_queue.MOST_FILES
    assert {"results.json", "log.txt", "state-1.bin", "texts-1.bin", "mtp.safetensors"} == {file.name for file in files}


@dataclass(frozen=True)
class Scripted(run_queue.Entry):
    """An entry that runs a line of Python, with FILE for its JSON file."""

    code: str = ""

    def command(self, file: Path, seconds: float, *, dry: bool, finish: bool) -> list[str]:
        return [sys.executable, "-c", self.code.replace("FILE", repr(str(file)))]


WRITES = 'open(FILE, "w").write(\'{"line": "well", "rows": [1]}\')'


def scripted(letter: str, code: str, seconds: float | None = 20) -> Scripted:
    return Scripted(letter, f"entry_{letter}", "a test", seconds, 20, code)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("raise ValueError", "failed with 1"),
        (WRITES + "; import os; os.kill(os.getpid(), 9)", "failed with -9"),
        (WRITES + "; import time; time.sleep(60)", "cut off"),
    ],
)
def test_a_fault_leaves_the_results_of_other_entries(code: str, status: str, tmp_path: Path) -> None:
    entries = [scripted("x", WRITES), scripted("y", code, 3), scripted("z", WRITES, None)]
    assert run_queue.run(entries, tmp_path, 30) == 1
    found = json.loads((tmp_path / "results.json").read_text())["entries"]
    assert [found[letter]["status"] for letter in "xyz"] == ["done", status, "done"]
    assert [found[letter]["line"] for letter in "xz"] == ["well", "well"]
    assert found["y"]["line"] == ("well" if "open" in code else "it left no results")  # what it had is kept


def test_an_entry_without_time_is_left_out(tmp_path: Path) -> None:
    assert run_queue.run([scripted("x", "import time; time.sleep(9)", 2), scripted("y", WRITES)], tmp_path, 2) == 1
    found = json.loads((tmp_path / "results.json").read_text())["entries"]
    assert (found["x"]["status"], found["y"]["status"]) == ("cut off", "left out")


def test_only_chooses_entries(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    entries = [scripted(letter, WRITES) for letter in "abc"]
    assert run_queue.main(["--only", "a,c", "--out", str(tmp_path)], entries) == 0
    assert list(json.loads((tmp_path / "results.json").read_text())["entries"]) == ["a", "c"]
    assert run_queue.main(["--only", "a,q", "--out", str(tmp_path)], entries) == 2
    assert "there is no entry q" in capsys.readouterr().err


def test_list_names_every_entry_with_its_time(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_queue.main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line[0] for line in lines] == ["a", "b", "c", "d", "f", "g", "h", "e"]
    assert [line.split(",")[0].split("  ")[-1].strip() for line in lines] == [
        "90 s",
        "40 s",
        "200 s",
        "60 s",
        "40 s",
        "45 s",
        "45 s",
        "the rest",
    ]
    assert sum(entry.seconds or 0 for entry in run_queue.ENTRIES) < run_queue.WHOLE <= 540


@pytest.mark.slow
def test_slim_clone_runs_the_dry_run(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", "--no-local", str(ROOT), str(clone)], check=True)
    assert queue("--slim", cwd=clone).returncode == 0
    size = sum(file.stat().st_size for file in clone.rglob("*") if file.is_file() and ".git" not in file.parts)
    assert size < 30e6
    done = queue("--dry-run", "--out", str(tmp_path / "out"), cwd=clone)
    assert done.returncode == 0, done.stdout + done.stderr


def test_parcels_arrive_in_any_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files split across parcels are joined, incomplete ones are named, and wheels are unpacked."""
    state, gguf = tmp_path / "state", tmp_path / "model.gguf"
    state.mkdir()
    (state / "state-1.bin").write_bytes(bytes(range(256)) * 1000)
    gguf.write_bytes(b"")
    monkeypatch.setattr(parcels, "STATE", state)
    whole = os.urandom(600_000)
    monkeypatch.setattr("gpu_runs.smollm2.carried", lambda file: whole)
    wheel = io.BytesIO()
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("toy/__init__.py", "")
    monkeypatch.setattr(parcels, "_wheels", lambda packages: {"toy-1.0-py3-none-any.whl": wheel.getvalue()})
    work, there = tmp_path / "work", tmp_path / "there"
    assert parcels.pack(gguf, work, 250_000) == 0
    folders = sorted(work.glob("parcel-*"))
    assert len(folders) == 4
    assert all(sum(file.stat().st_size for file in folder.iterdir()) <= 250_000 for folder in folders)
    for folder in reversed(folders):
        assert parcels.missing(there / "inputs", "smollm2.bin") is not None
        there.mkdir(exist_ok=True)
        folder.rename(there / folder.name)
        parcels.collect(there)
    assert parcels.missing(there / "inputs", "smollm2.bin") is None
    assert (there / "inputs/smollm2.bin").read_bytes() == whole
    assert (there / "inputs/state-1.bin").read_bytes() == bytes(range(256)) * 1000
    found = sorted(file.name for file in (there / "inputs").iterdir())
    assert found == ["smollm2.bin", "state-1.bin", "toy-1.0-py3-none-any.whl"]
    assert (there / "packages/toy/__init__.py").is_file()


def test_a_file_that_is_not_there_cannot_be_packed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert parcels.pack(tmp_path / "none.gguf", tmp_path, 10**6) == 2
    assert "none.gguf is no file" in capsys.readouterr().err


def test_report_keeps_what_an_entry_had(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    report = Report(file, 100)
    report.measure({"case": 1}, lambda: {"ms": 2.5})
    report.measure({"case": 2}, lambda: {"ms": 1 / 0})
    report.measure({"case": 3}, lambda: {"ms": 1.0}, least=1000)
    rows = json.loads(file.read_text())["rows"]
    assert rows[0] == {"case": 1, "ms": 2.5}
    assert rows[1]["error"].startswith("ZeroDivisionError")
    assert rows[2] == {"case": 3, "not_measured": "no time was left"}


def test_page_says_what_was_not_measured(tmp_path: Path) -> None:
    assert "not measured" in page.page([])
    measured = {"model": "llada-8b", "loop": "pardec", "sampler": "sequential@dual", "batch": 1, "cuda_graphs": False}
    entry = {"status": "done", "seconds": 20.0, "rows": [{**measured, "step_ms": 6.25, "repeats": True}]}
    run = {
        "date": "2026-01-02",
        "dry": False,
        "machine": {"cuda:0": "A Card", "torch": "2.11"},
        "entries": {"c": entry},
    }
    dry = {**run, "date": "2026-01-03", "dry": True, "entries": {"a": entry}}
    files = []
    for name, content in (("old", run), ("dry", dry)):
        files.append(tmp_path / f"{name}.json")
        files[-1].write_text(json.dumps(content))
    text = page.page(files)
    assert "One A Card, torch 2.11, 2026-01-02; entry c, done in 20 s." in text
    assert "| llada-8b | pardec | `sequential@dual` | 1 | no | 6.25 |  |  | yes |" in text
    assert "| llada-8b | pardec | `sequential@dual` | 1 | yes | not measured |" in text
    assert "Not measured: no run of entry a has been committed." in text  # a dry run is no measurement


def test_page_shows_all_stretches_of_the_training_in_order(tmp_path: Path) -> None:
    """Two runs on one day: the earlier stretch comes first, whatever the names; entry c shows both."""
    files = []
    for name, first, loss in (("a", 700, 1.25), ("b", 0, 2.5)):
        rows = [{"part": "start", "step": first}, {"part": "state", "step": first + 700, "validation": loss}]
        entry = {"status": "done", "seconds": 20.0, "rows": rows}
        run = {"date": "2026-01-02", "dry": False, "machine": {}, "entries": {"e": entry, "c": {**entry, "rows": []}}}
        files.append(tmp_path / f"{name}.json")
        files[-1].write_text(json.dumps(run))
    text = page.page(files)
    assert text.index("| state | 700 | 2.5 |") < text.index("| state | 1400 | 1.25 |")
    assert text.count("entry c, done") == 2


def test_page_tells_runs_that_differ_from_a_first_one_that_does() -> None:
    """The first captured run uses other kernels; later ones are compared with each other."""
    seen = [
        page._repeats(row) for row in ({"repeats": True, "first_equal": False}, {"repeats": False}, {"repeats": True})
    ]
    assert seen == ["yes, after the first", "no", "yes"]


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
def test_kernels_are_timed_beside_their_versions_before(tmp_path: Path) -> None:
    """Under the interpreter, with tiny shapes: every changed kernel has a row, and is near its definition."""
    done = queue("--dry-run", "--only", "f", "--out", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((tmp_path / "results.json").read_text())["entries"]["f"]["rows"]
    assert not [row for row in rows if "error" in row or "not_measured" in row]
    assert {row["kernel"] for row in rows} == {
        "norm",
        "SwiGLU",
        "residual sum, norm",
        "residual sum in a matmul",
        "rotary",
        "attention",
        "confidence",
        "confidence, draw",
    }
    assert all(row["apart"] < 0.05 for row in rows), [row for row in rows if row["apart"] >= 0.05]
    assert all("before_ms" in row for row in rows if row["kernel"] in ("attention", "confidence", "rotary", "norm"))
    assert "Not measured: no run of entry f" in page.page([])


def test_an_mtp_layer_travels_as_one_file_and_drafts_for_its_target(tmp_path: Path) -> None:
    """Entry g writes the layer with its config; the folder restored from it drafts, and a run starts from it."""
    from gpu_runs.mtp_layer import FILE, restore, run, write_target
    from gpu_runs.training import tiny

    import pardec
    from pardec.training.export import read_export

    run(Report(tmp_path / "g.json", 600, dry=True))
    found = json.loads((tmp_path / "g.json").read_text())
    assert [row["part"] for row in found["rows"]][-1] == "layer"
    assert found["rows"][-1]["steps"] == 20
    assert found["rows"][-1]["length"] > 2, "this target repeats itself, and the layer has learnt that"
    restore(tmp_path / FILE, tmp_path / "layer")
    shape, template, base = tiny()
    write_target(tmp_path / "target", shape, base, template["end"])
    model = pardec.load(tmp_path / "target", device="cpu", dtype="float32")
    options = {"input_ids": [[1, 9, 3, 20, 21]], "max_new_tokens": 12, "stop_ids": []}
    plain = model.generate(sampler="sequential", **options)
    drafted = model.generate(sampler=f"mtp:name={tmp_path / 'layer'},k=3", **options)
    assert drafted.tokens == plain.tokens
    assert drafted.nfe[0] < plain.nfe[0]
    assert read_export(tmp_path / "layer", model.language_model, "mtp").kind == "mtp"
