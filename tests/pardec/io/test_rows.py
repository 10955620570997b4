"""The append-only rows file: incomplete last lines, files of other runs, concurrent writers."""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pardec.io.jsonl import RowsFile, key_of
from pardec.models.errors import PardecError, SpecError

FIRST = {"key": "a", "text": "ä"}
SECOND = {"key": "b", "text": "long " * 50}


def test_rows_come_back_by_key_and_a_later_one_replaces_an_earlier(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "rows.jsonl"
    RowsFile(path).append([FIRST, SECOND])
    RowsFile(path).append([{"text": "new", "key": "a"}])
    assert RowsFile(path).rows == {"a": {"text": "new"}, "b": {"text": SECOND["text"]}}
    assert all(line.startswith('{"key": ') for line in path.read_text().splitlines())


@pytest.mark.parametrize("kept", [1, 5, 9, 100])
def test_a_line_cut_short_anywhere_is_dropped_with_a_warning_and_mended_by_the_next_append(
    tmp_path: Path, kept: int
) -> None:
    path = tmp_path / "rows.jsonl"
    RowsFile(path).append([FIRST])
    whole = path.read_bytes()
    path.write_bytes(whole + json.dumps(SECOND).encode()[:kept])
    said: list[str] = []
    file = RowsFile(path, warn=said.append)
    assert file.rows == {"a": {"text": "ä"}}
    assert len(said) == 1
    assert "cut short" in said[0]
    file.append([SECOND])
    assert path.read_bytes() == whole + json.dumps(SECOND, ensure_ascii=False).encode() + b"\n"


@pytest.mark.parametrize("tail", [b'{"key": "b", "text": "' + b"x" * 200_000, b"\0" * 100], ids=["long", "zeros"])
def test_a_long_tail_or_one_of_zeros_is_a_torn_line(tmp_path: Path, tail: bytes) -> None:
    path = tmp_path / "rows.jsonl"
    RowsFile(path).append([FIRST])
    whole = path.read_bytes()
    path.write_bytes(whole + tail)
    RowsFile(path).append([{"key": "c"}])
    assert path.read_bytes() == whole + b'{"key": "c"}\n'


@pytest.mark.parametrize("content", ['{"mine": 1}\n', '{"mine": 1}', "plain text", "[1]\n", '{"key": 1}\n', "\n"])
def test_a_foreign_file_is_refused_and_left_alone(tmp_path: Path, content: str) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text(content)
    for run, way_out in (({}, "remove the line"), ({"sampler": "threshold"}, "--overwrite")):
        with pytest.raises(SpecError, match="line 1 is not a row of a run") as refusal:
            RowsFile(path, run)
        assert way_out in str(refusal.value.hint)
    assert path.read_text() == content


def test_text_that_somebody_else_wrote_meanwhile_is_not_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    file = RowsFile(path)
    path.write_text("my notes")
    with pytest.raises(SpecError, match="ends with text that is not a row"):
        file.append([FIRST])
    assert path.read_text() == "my notes"


def test_rows_of_other_settings_are_refused_with_the_difference(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    RowsFile(path, {"n": 1, "model": "m"}).append([FIRST])
    with pytest.raises(SpecError, match="has rows of other settings: n 1 there, 2 now"):
        RowsFile(path, {"n": 2, "model": "m"})
    assert RowsFile(path, {"n": 1, "model": "m"}).rows == {"a": {"text": "ä"}}
    file = RowsFile(path, {"n": 2, "model": "m"}, overwrite=True)
    assert RowsFile(path, {"n": 1, "model": "m"}).rows  # still there: nothing has been made yet
    file.append([SECOND])
    assert list(RowsFile(path, {"n": 2, "model": "m"}).rows) == ["b"]


def test_discarded_rows_are_gone_and_the_others_stay_byte_for_byte(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    file = RowsFile(path)
    file.append([FIRST, SECOND, {"key": "c", "x": 1}])
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(path.read_bytes() + b'{"key": "torn')
    file.discard({"b"})
    assert path.read_bytes() == lines[0] + lines[2]
    assert list(file.rows) == ["a", "c"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["rows.jsonl"]


def test_count_sees_what_others_append(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    watching = RowsFile(path)
    assert watching.count() == 0
    RowsFile(path).append([FIRST, SECOND])
    assert watching.count() == 2
    path.write_bytes(path.read_bytes() + b'{"key": "to')
    assert watching.count() == 2
    RowsFile(path).append([{"key": "c"}])
    assert watching.count() == 3


def test_a_key_tells_all_its_parts() -> None:
    assert key_of({"a": 1, "b": 2}, "p", 0) == key_of({"b": 2, "a": 1}, "p", 0)
    assert len({key_of({"a": 1}, "p", 0), key_of({"a": 1}, "p", 1), key_of({"a": 1}, "q", 0), key_of({}, "p", 0)}) == 4


def _writer(path: Path, name: str) -> None:
    file = RowsFile(path)
    for number in range(40):
        file.append([{"key": f"{name}-{number}-{part}", "text": "x" * 3000} for part in range(3)])


def test_many_processes_append_to_one_file_and_nothing_is_mixed_or_lost(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_writer, args=(path, name)) for name in "abcd"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(RowsFile(path).rows) == 4 * 40 * 3
    names = [json.loads(line)["key"].rsplit("-", 1)[0] for line in path.read_text().splitlines()]
    assert all(len(set(names[at : at + 3])) == 1 for at in range(0, len(names), 3))  # batches stand together


# --- two runs, and files that change under a run ---


def keys(path: Path) -> list[str]:
    return [json.loads(line)["key"] for line in path.read_text().splitlines()]


@pytest.mark.parametrize("overwrite", [False, True])
def test_two_runs_on_one_file_write_every_row_once(tmp_path: Path, overwrite: bool) -> None:
    path = tmp_path / "rows.jsonl"
    if overwrite:
        RowsFile(path).append([{"key": "old"}])
    one, two = (RowsFile(path, {"n": 1}, overwrite=overwrite) for _ in range(2))
    for key in "abc":
        one.append([{"key": key, "by": 1}])
        two.append([{"key": key, "by": 2}])
    two.append([{"key": "d"}])
    one.append([{"key": "d"}, {"key": "e"}])
    assert keys(path) == list("abcde")
    assert set(one.rows) == set("abcde")
    assert RowsFile(path, {"n": 1}).rows["b"] == {"by": 1}


def test_a_run_of_other_settings_on_the_same_file_ends_with_an_error_and_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    one, two = RowsFile(path, {"n": 1}, overwrite=True), RowsFile(path, {"n": 2}, overwrite=True)
    one.append([{"key": "a"}])
    with pytest.raises(SpecError, match="rows of other settings: n 1 there, 2 now"):
        two.append([{"key": "b"}])
    assert keys(path) == ["a"]


def deleted(path: Path) -> None:
    path.unlink()


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def begun_anew(path: Path) -> None:
    path.unlink()
    RowsFile(path).append([{"key": "theirs", "text": "x" * 9000}])


def folder_gone(path: Path) -> None:
    path.unlink()
    path.parent.rmdir()


@pytest.mark.parametrize("harm", [deleted, emptied, begun_anew, folder_gone])
@pytest.mark.parametrize("last", [[], [{"key": "c"}]])
def test_rows_of_a_file_that_was_deleted_meanwhile_are_written_again(
    tmp_path: Path, harm: Callable[[Path], None], last: list[dict[str, str]]
) -> None:
    path, said = tmp_path / "run" / "rows.jsonl", list[str]()
    RowsFile(path).append([{"key": "before", "n": 0}])
    file = RowsFile(path, warn=said.append)
    file.append([{"key": "a", "text": "ä"}, {"key": "b"}])
    harm(path)
    file.append(last)
    assert set(keys(path)) - {"theirs"} == {"before", "a", "b", *(row["key"] for row in last)}
    assert len(keys(path)) == len(set(keys(path)))
    assert RowsFile(path).rows["a"] == {"text": "ä"}
    assert len(said) == 1
    assert "was deleted or emptied; writing 3 rows again" in said[0]


def _racer(path: Path, start: float) -> None:
    file = RowsFile(path)
    known = set(file.rows)  # of a process that starts late; a run computes these no more
    time.sleep(max(start - time.time(), 0))
    for number in sorted(set(range(60)) - set(map(int, known))):
        file.append([{"key": str(number), "text": "x" * 200}])


def test_runs_beside_each_other_write_every_row_once_though_the_file_is_deleted(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_racer, args=(path, time.time() + 0.2)) for _ in range(3)]
    for writer in writers:
        writer.start()
    while not path.exists() or path.stat().st_size < 1000:
        time.sleep(0.001)
    path.unlink()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    assert sorted(map(int, keys(path))) == list(range(60))


def test_a_file_that_disappears_between_opening_and_locking_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rows.jsonl"
    stat, calls = os.stat, list[object]()

    def delete_at_the_second(name: Any, *args: Any, **options: Any) -> os.stat_result:
        if name == path:
            calls.append(name)
            if len(calls) == 2:
                path.unlink()
        return stat(name, *args, **options)

    file = RowsFile(path, warn=lambda text: None)
    monkeypatch.setattr("pardec.io.jsonl.os.stat", delete_at_the_second)
    file.append([FIRST])
    file.append([SECOND])
    monkeypatch.undo()
    assert len(calls) > 2
    assert keys(path) == [FIRST["key"], SECOND["key"]]


def test_a_full_disk_names_the_file_and_keeps_what_it_has(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    file = RowsFile(path)
    file.append([FIRST])
    whole, (soft, hard) = path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) + 100, hard))
    try:
        with pytest.raises(PardecError, match=r"cannot write to .*rows\.jsonl: File too large") as caught:
            file.append([SECOND])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "its 1 rows are safe" in str(caught.value.hint)
    assert path.read_bytes() == whole
    file.append([SECOND])
    assert keys(path) == ["a", "b"]


def unwritable(folder: Path) -> Path:
    folder.chmod(0o500)
    return folder / "rows.jsonl"


def below_a_file(folder: Path) -> Path:
    (folder / "file").write_text("x")
    return folder / "file" / "rows.jsonl"


def a_folder(folder: Path) -> Path:
    (folder / "rows.jsonl").mkdir()
    return folder / "rows.jsonl"


def a_pipe(folder: Path) -> Path:
    os.mkfifo(folder / "rows.jsonl")
    return folder / "rows.jsonl"


@pytest.mark.parametrize("place", [unwritable, below_a_file, a_folder, a_pipe])
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_place_that_takes_no_rows_is_named_before_there_are_any(
    tmp_path: Path, place: Callable[[Path], Path], overwrite: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = place(tmp_path)
    if place is unwritable:  # root may write everywhere
        monkeypatch.setattr(os, "access", lambda where, mode: False)
    with pytest.raises(PardecError) as caught:
        RowsFile(path, overwrite=overwrite).check_writable()
    assert str(path) in str(caught.value)
    tmp_path.chmod(0o700)
