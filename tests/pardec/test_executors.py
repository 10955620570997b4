"""The same batches give the same rows with every executor, and a dying worker loses or doubles none."""

from __future__ import annotations

import json
import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import pardec
from pardec.cli import dispatch
from pardec.cli.batches import Batches
from pardec.cli.inputs import Item
from pardec.executors import BatchError, executor
from pardec.executors import ray as ray_executor
from pardec.executors import torchrun as torchrun_executor
from pardec.executors.outline import load_without_weights
from pardec.models.errors import ArgumentError, SpecError
from pardec.models.kernels.cpu import blocks
from pardec.models.parallel.tensor_parallel import find_interface
from tests.models.loading.gguf_files import write_gguf
from tests.models.loading.test_gguf import IDS

ROOT = Path(__file__).resolve().parents[2]
TOY = Path(__file__).with_name("toy_run.py")
SQUARES = {str(unit): unit * unit for unit in range(24)}
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
PROMPTS = ["Tom has 3 cups.", "Sara buys 12 apples and finds 4 more apples.", "Ann has 8 cups.", "Ann.", "Ann has 8."]

Done = subprocess.CompletedProcess[str]


def python(*arguments: object, timeout: int = 300, **more: str) -> Done:
    """Runs a program, with `more` in its environment."""
    named = {name: value for name, value in os.environ.items() if name not in torchrun_executor._ENVIRONMENT}
    named |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **more}
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, env=named, capture_output=True, text=True, timeout=timeout, check=False)


def toy(name: str, folder: Path, **asked: Any) -> Done:
    return python(*(TORCHRUN if name == "torchrun" else []), TOY, name, folder, json.dumps(asked))


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]


def squares(folder: Path) -> dict[str, int]:
    """The rows in the file; a duplicate key is an error."""
    rows = lines(folder)
    assert len({row["key"] for row in rows}) == len(rows)
    return {row["key"]: row["square"] for row in rows}


class Doubling:
    """Job and worker in one: rows are twice their units, and units in `bad` raise an error."""

    def __init__(self, bad: Sequence[int] = ()) -> None:
        self.bad, self.loaded = bad, 0

    def worker(self) -> Doubling:
        self.loaded += 1
        return self

    def run(self, batch: Sequence[int]) -> Iterator[list[dict[str, Any]]]:
        for unit in batch:
            if unit in self.bad:
                raise ValueError(f"{unit} is bad")
            yield [{"twice": 2 * unit}]


# --- this process ---


def test_local_runs_batches_in_order_with_one_worker() -> None:
    job, got = Doubling(), []  # type: ignore[var-annotated]
    crew = executor()
    crew.run(job, [[1, 2], [3]], got.append)
    crew.wait()
    assert crew.leads
    assert job.loaded == 1
    assert got == [[{"twice": 2}], [{"twice": 4}], [{"twice": 6}]]


def test_without_batches_nothing_is_loaded() -> None:
    job = Doubling()
    executor().run(job, [], print)
    assert job.loaded == 0


def test_one_failed_batch_does_not_stop_the_others() -> None:
    got: list[list[dict[str, Any]]] = []
    with pytest.raises(BatchError, match=r"1 of 3 batches could not be run; the first: ValueError: 4 is bad"):
        executor().run(Doubling(bad=[4]), [[1], [2, 4, 5], [3]], got.append)
    assert got == [[{"twice": 2}], [{"twice": 4}], [{"twice": 6}]]  # what was finished before the error is kept


def test_what_the_sink_raises_ends_the_run_at_once() -> None:
    seen = []

    def full(rows: list[dict[str, Any]]) -> None:
        seen.append(rows)
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        executor().run(Doubling(), [[1], [2]], full)
    assert len(seen) == 1


# --- what is refused ---


@pytest.mark.parametrize(
    ("name", "workers", "message", "hint"),
    [
        ("lokal", None, "unknown executor 'lokal' (did you mean 'local'?)", "local, torchrun, ray"),
        ("local", 2, "the local executor has one worker", "torchrun"),
        ("ray", 0, "workers must be at least 1, got 0", "leave it out"),
        ("torchrun", 4, "works under torchrun", "torchrun --nproc-per-node 4 "),
    ],
)
def test_an_executor_that_cannot_be_is_refused(
    name: str, workers: int | None, message: str, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(SpecError) as caught:
        executor(name, workers=workers)
    assert message in str(caught.value)
    assert hint in str(caught.value.hint)


def test_torchrun_refuses_another_number_of_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in torchrun_executor._ENVIRONMENT:
        monkeypatch.setenv(name, "2")
    with pytest.raises(SpecError, match="torchrun started 2 processes, got workers=3"):
        executor("torchrun", workers=3)


def test_torchrun_says_the_command_that_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr(sys, "argv", ["/bin/pardec", "generate", "tiny-dream", "--prompts", "my file.txt"])
    with pytest.raises(SpecError) as caught:
        executor("torchrun")
    assert caught.value.hint == "run torchrun --nproc-per-node 2 -m pardec generate tiny-dream --prompts 'my file.txt'"


def test_ray_is_asked_for_by_the_name_of_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_executor, "find_spec", lambda name: None)
    with pytest.raises(SpecError) as caught:
        executor("ray")
    assert 'pip install -e ".[ray]"' in str(caught.value.hint)


@pytest.mark.parametrize(
    ("local", "set_already", "resolves", "want"),
    [("2", None, False, "lo"), ("2", "eth7", False, "eth7"), ("1", None, False, None), ("2", None, True, None)],
)
def test_loopback_is_named_only_on_one_machine_without_a_name(
    local: str, set_already: str | None, resolves: bool, want: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def resolve(*asked: object) -> list[object]:
        if not resolves:
            raise socket.gaierror("no such name")
        return []

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(socket, "if_nameindex", lambda: [(1, "lo"), (2, "eth0")])
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", local)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", set_already or "")
    if set_already is None:
        monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    find_interface()
    assert os.environ.get("GLOO_SOCKET_IFNAME") == want


# --- several processes ---


@pytest.mark.slow
def test_torchrun_loses_nothing_when_a_process_is_killed(tmp_path: Path) -> None:
    first = toy("torchrun", tmp_path, kills=13)
    assert first.returncode != 0
    some = squares(tmp_path)
    assert some
    assert not {"12", "13", "14"} & set(some)

    second = toy("torchrun", tmp_path)
    assert second.returncode == 0, second.stderr
    assert squares(tmp_path) == SQUARES
    assert second.stdout == "24\n"  # the leader's alone, and written once all were done
    again = {row["pid"] for row in lines(tmp_path) if row["key"] not in some}
    assert len(again) == 2 or len(some) > 18  # both took part where there was something to share


LEFT_AT_THE_END = """
import atexit, os
from pathlib import Path

@atexit.register  # what is registered first runs last
def tell() -> None:
    print(*sorted(Path(task, "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()))

from pardec.executors import executor

crew = executor("torchrun")
assert crew._gather(1) == [1]
assert any("gloo" in Path(task, "comm").read_text() for task in Path("/proc/self/task").iterdir())
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are read as Linux shows them")
def test_no_thread_of_gloo_outlives_the_interpreter(tmp_path: Path) -> None:
    # One that lets go of a collective's tensors after it ends the process, and its run, with SIGABRT: now and then.
    script = tmp_path / "left.py"
    script.write_text(LEFT_AT_THE_END)
    alone = dict.fromkeys(torchrun_executor._ENVIRONMENT, "0") | {"WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    done = python(script, **alone)  # as torchrun starts one process, on any free port
    assert done.returncode == 0, done.stderr
    assert "python" in done.stdout
    assert "gloo" not in done.stdout


@pytest.mark.slow
def test_torchrun_tells_failed_batches_once_and_finishes_the_others(tmp_path: Path) -> None:
    done = toy("torchrun", tmp_path, bad=16)
    assert done.returncode != 0
    assert "1 of 8 batches could not be run; the first: ValueError: unit 16 is bad" in done.stderr
    assert squares(tmp_path) == {key: square for key, square in SQUARES.items() if key not in ("15", "16", "17")}


def have_ray() -> None:
    for name in ("ray", "pyarrow"):
        pytest.importorskip(name, reason="Ray Data is not installed (the extra ray)")


@pytest.mark.slow
def test_ray_tries_the_batch_of_a_killed_actor_again(tmp_path: Path) -> None:
    have_ray()
    done = toy("ray", tmp_path, kills=13, seconds=1)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "killed").exists()
    assert squares(tmp_path) == SQUARES
    assert done.stdout == "24\n"  # Ray tells of dead actors on stdout unless it is stopped
    assert len({row["pid"] for row in lines(tmp_path)}) >= 2


@pytest.mark.slow
def test_ray_gives_up_a_batch_that_kills_every_actor_and_no_other(tmp_path: Path) -> None:
    have_ray()
    done = toy("ray", tmp_path, deadly=7, bad=16)
    assert done.returncode != 0
    assert "2 of 8 batches could not be run" in done.stderr
    assert set(SQUARES) - set(squares(tmp_path)) == {"6", "7", "8", "15", "16", "17"}


@pytest.mark.slow
def test_ray_says_why_no_actor_can_start(tmp_path: Path) -> None:
    have_ray()
    done = toy("ray", tmp_path, loads=False)
    assert done.returncode != 0
    assert "an actor could not start: RuntimeError: no weights" in done.stderr


# --- pardec generate ---


def generation(folder: Path, model: pardec.Model, to: Path) -> tuple[Batches, dispatch.Generation]:
    items = [Item(f"p{at}", prompt) for at, prompt in enumerate(PROMPTS)]
    arguments: dict[str, Any] = {"sampler": "threshold:tau=0.02", "max_new_tokens": 8, "temperature": 0.7}
    run = Batches(model, model.prepare(PROMPTS, **arguments), items, stream=False, quiet=True)
    dispatch.open_rows(run, executor(), to, overwrite=False)
    job = dispatch.Generation(str(folder), {"device": "cpu", "dtype": "float32"}, items, arguments, 2)
    return run, job


def test_dealt_rows_are_those_of_one_process(folder: Path, model: pardec.Model, tmp_path: Path) -> None:
    alone, _ = generation(folder, model, tmp_path / "alone.jsonl")
    alone.decode(2, show=False)
    run, job = generation(folder, model, tmp_path / "dealt.jsonl")
    unpickled = pickle.loads(pickle.dumps(dispatch.replace(job, loaded=(model, run.call))))
    assert unpickled == job  # what travels holds no model
    dispatch.decode(run, executor(), unpickled)
    assert run.rows == alone.rows
    assert (run.tokens, run.forwards) == (alone.tokens, alone.forwards)
    written = [sorted((tmp_path / name).read_text().splitlines()) for name in ("alone.jsonl", "dealt.jsonl")]
    assert written[0] == written[1]

    resumed, job = generation(folder, model, tmp_path / "dealt.jsonl")
    dispatch.decode(resumed, executor(), job)
    assert resumed.forwards == 0
    assert sorted(resumed.rows) == list(range(len(PROMPTS)))


def test_a_worker_without_a_model_loads_it(folder: Path, model: pardec.Model, tmp_path: Path) -> None:
    run, job = generation(folder, model, tmp_path / "rows.jsonl")
    run.decode(2, show=False)
    rows = {row["at"]: row for rows in job.worker().run([4, 1, 2]) for row in rows}
    assert {at: row["tokens"] for at, row in rows.items()} == {at: run.rows[at]["tokens"] for at in (4, 1, 2)}


def test_an_outline_prepares_what_the_model_prepares(folder: Path, model: pardec.Model) -> None:
    bare = load_without_weights(str(folder), on_gpu=False)
    assert str(bare.language_model.device) == "meta"
    assert bare.language_model.dtype == model.language_model.dtype
    mine, theirs = (each.prepare(PROMPTS, sampler="threshold@dual") for each in (bare, model))
    assert (mine.settings, mine.seeds, str(mine.sampler.spec)) == (
        theirs.settings,
        theirs.seeds,
        str(theirs.sampler.spec),
    )


KEPT: list[tuple[str, dict[str, Any]]] = [
    ("Q8_0", {}),
    ("Q8_0", {"packed": False}),
    ("Q8_0", {"dtype": "float32"}),
    ("Q8_0", {"dtype": "bfloat16", "packed": True}),
    ("Q8_0", {"activations": "int8"}),
    ("Q8_0", {"quantize": "int8", "activations": "int8"}),
    ("Q8_0", {"device_map": "auto"}),
    ("F16", {}),
]


@pytest.fixture
def without_gpus(monkeypatch: pytest.MonkeyPatch) -> ray_executor.Ray:
    """An executor of Ray, whether or not Ray is installed."""
    monkeypatch.setattr(ray_executor, "find_spec", lambda name: object())
    monkeypatch.setattr(ray_executor.Ray, "gpus", 0)
    return ray_executor.Ray()


@pytest.mark.skipif(blocks.kernel() is None, reason="no kernel for packed weights here")
@pytest.mark.parametrize(("kind", "arguments"), KEPT, ids=str)
def test_ray_workers_keep_weights_as_load_does(
    without_gpus: ray_executor.Ray, tmp_path: Path, kind: str, arguments: dict[str, Any]
) -> None:
    file = str(write_gguf(tmp_path / "toy.gguf", kind))
    own, passed = pardec.load(file, device="cpu", **arguments), {"device": "cpu", **arguments}
    bare = dispatch.load_model(without_gpus, file, passed, quiet=True)
    worker = dispatch.Generation(file, passed, [Item("p0", "the")], {"max_new_tokens": 2}, 1).worker().model
    assert worker.weight_settings == own.weight_settings == bare.weight_settings
    assert worker.language_model.dtype == own.language_model.dtype == bare.language_model.dtype
    assert worker.language_model.weight_bytes == own.language_model.weight_bytes
    assert worker.logits(IDS).equal(own.logits(IDS))


@pytest.mark.parametrize(
    ("arguments", "gpus", "problem"),
    [
        ({"packed": True}, 1, "packed=True cannot be followed: the model is on cuda"),
        ({"activations": "int8"}, 1, "activations=int8 cannot be followed: the model is on cuda"),
        ({"packed": True, "quantize": "int8"}, 0, "packed=True cannot be followed: quantize=int8 needs plain weights"),
        ({"activations": "int8", "packed": False}, 0, "activations=int8 cannot be followed: packed=False"),
    ],
)
def test_ray_refuses_what_its_workers_cannot_follow(
    without_gpus: ray_executor.Ray,
    tmp_path: Path,
    arguments: dict[str, Any],
    gpus: int,
    problem: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ray_executor.Ray, "gpus", gpus)
    file = str(write_gguf(tmp_path / "toy.gguf", "Q8_0"))
    with pytest.raises(ArgumentError, match=problem):
        dispatch.load_model(without_gpus, file, arguments, quiet=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "the ray executor writes rows to a .jsonl file"),
        (("-o", "saved.json"), "the ray executor writes rows to a .jsonl file"),
        (("-o", "rows.jsonl", "--stream"), "--stream cannot show the processes"),
    ],
)
def test_generate_refuses_what_only_one_process_can_do(
    arguments: tuple[str, ...], message: str, cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_executor, "find_spec", lambda name: object())
    code, out, err = cli("generate", "tiny-dream", "-p", "Ann.", "--executor", "ray", *arguments)
    assert (code, out) == (2, "")
    assert message in err


def generated(name: str, folder: Path, to: Path) -> list[str]:
    prompts = to.with_name("prompts.txt")
    prompts.write_text("\n".join(PROMPTS * 2))
    command = ["-m", "pardec", "generate", folder, "--prompts", prompts, "-n", 8, "--batch-size", 3, "-o", to, "--json"]
    under = TORCHRUN if name == "torchrun" else []
    done = python(*under, *command, *([] if name == "local" else ["--executor", name]), timeout=600)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["rows"]) == 2 * len(PROMPTS)  # one document, of all rows, by one process
    return sorted(to.read_text().splitlines())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["torchrun", "ray"])
def test_generate_writes_the_same_file_through_every_executor(name: str, folder: Path, tmp_path: Path) -> None:
    if name == "ray":
        have_ray()
    assert generated(name, folder, tmp_path / f"{name}.jsonl") == generated("local", folder, tmp_path / "local.jsonl")
