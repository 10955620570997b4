"""The append-only rows file: torn ends, foreign files, many writers."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path

import pytest

from pardec.models.errors import SpecError
from pardec.rows import RowsFile, key_of

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


def test_a_torn_line_longer_than_one_look_back_is_mended(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    RowsFile(path).append([FIRST])
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"key": "b", "text": "' + b"x" * 200_000)
    RowsFile(path).append([{"key": "c"}])
    assert path.read_bytes() == whole + b'{"key": "c"}\n'


def test_a_tail_of_zeros_is_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    RowsFile(path).append([FIRST])
    whole = path.read_bytes()
    path.write_bytes(whole + b"\0" * 100)
    RowsFile(path).append([{"key": "c"}])
    assert path.read_bytes() == whole + b'{"key": "c"}\n'


@pytest.mark.parametrize("content", ['{"mine": 1}\n', '{"mine": 1}', "plain text", "[1]\n", '{"key": 1}\n', "\n"])
def test_a_foreign_file_is_refused_and_left_alone(tmp_path: Path, content: str) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text(content)
    with pytest.raises(SpecError, match="line 1 is no row of a run"):
        RowsFile(path)
    assert path.read_text() == content


def test_text_that_somebody_else_wrote_meanwhile_is_not_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    file = RowsFile(path)
    path.write_text("my notes")
    with pytest.raises(SpecError, match="ends with text that is no row"):
        file.append([FIRST])
    assert path.read_text() == "my notes"


def test_rows_of_other_settings_are_refused_with_the_difference(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    RowsFile(path, {"n": 1, "model": "m"}).append([FIRST])
    with pytest.raises(SpecError, match="holds rows of other settings: n 1 there, 2 now$"):
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
