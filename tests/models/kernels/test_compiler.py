"""The C compiler: found like users name it; a compiler that hangs or fails ends soon, with one line."""

from __future__ import annotations

import os
import shutil
import time

import pytest

from pardec.models.kernels.cpu import compiler
from pardec.models.kernels.cpu import library as compiled
from tests.models.compiling import fresh, own_cache, seven_in_c

pytestmark = pytest.mark.skipif(
    compiler.command() is None or compiled._openmp() is None, reason="no C compiler, or no OpenMP"
)


@pytest.fixture(autouse=True)
def place(monkeypatch, tmp_path):
    compiler._command.cache_clear()
    return own_cache(monkeypatch, tmp_path)


@pytest.fixture
def seven(tmp_path):
    return seven_in_c(tmp_path)


@pytest.fixture
def becomes(monkeypatch, tmp_path):
    """Replaces the compiler by a script, which appends a line to "runs" each time."""

    def become(script, name="compiler"):
        file = tmp_path / name
        file.write_text(f"#!/bin/sh\necho run >> {tmp_path}/runs\n{script}\n")
        file.chmod(0o700)
        monkeypatch.setenv("CC", str(file))

    return become


def runs(tmp_path):
    return (tmp_path / "runs").read_text().count("run")


@pytest.mark.parametrize("words", ["env cc", "env 'A B=c d' cc -O1", "'{spaced}' -g"])
def test_it_may_have_options(monkeypatch, seven, tmp_path, words, caplog):
    (tmp_path / "a folder").mkdir()
    (tmp_path / "a folder" / "cc").symlink_to(shutil.which("cc"))
    monkeypatch.setenv("CC", words.format(spaced=tmp_path / "a folder" / "cc"))
    assert fresh(seven).seven() == 7
    assert not caplog.records


def test_it_may_lie_where_there_are_spaces(becomes, seven, tmp_path, caplog):
    becomes('exec cc "$@"', "my compiler")
    assert fresh(seven).seven() == 7
    assert runs(tmp_path) == 2
    assert not caplog.records


@pytest.mark.parametrize("words", ["no-such-compiler -O2", "'", "''", "/", "#"])
def test_what_names_none_is_told_and_passed_over(monkeypatch, seven, words, caplog):
    monkeypatch.setenv("CC", words)
    assert fresh(seven).seven() == 7
    assert fresh(seven).seven() == 7
    assert [record.getMessage() for record in caplog.records] == [f"CC={words} names no compiler: cc takes its place"]


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("printf 'caf\\351 \\377\\376' >&2; exit 3", "ended with 3: caf\N{REPLACEMENT CHARACTER}"),
        ("exit 0", "could not make a library"),
        ("echo fine", "could not make a library: fine"),
        ("exec yes", " bytes: b'y"),
        ("kill -9 $$", "ended with -9"),
        ("cat", "could not make a library"),  # waits for nobody to type
        ('while [ "$1" != -o ]; do shift; done; echo > "$2"', "could not be compiled"),  # no library at all
    ],
)
def test_what_it_does_instead_is_told_in_a_line(becomes, seven, place, caplog, script, said):
    becomes(script)
    assert fresh(seven) is None
    (message,) = {record.getMessage() for record in caplog.records if "PyTorch is used" in record.getMessage()}
    assert said in message
    assert "\n" not in message


def test_what_does_not_start_is_told(monkeypatch, seven, tmp_path, caplog):
    (tmp_path / "text").write_bytes(b"\0 no program")
    (tmp_path / "text").chmod(0o700)
    monkeypatch.setenv("CC", str(tmp_path / "text"))
    assert fresh(seven) is None
    assert "does not start" in caplog.text


@pytest.mark.parametrize("script", ["sleep 60 & echo $! > {pid}; wait", "sleep 60 & echo $! > {pid}"])
def test_one_that_hangs_is_ended_with_what_it_started_and_not_tried_again(
    becomes, seven, place, tmp_path, monkeypatch, caplog, script
):
    becomes(script.format(pid=tmp_path / "pid"))
    monkeypatch.setattr(compiler, "_left", 1.5)
    start = time.monotonic()
    assert fresh(seven) is None
    assert time.monotonic() - start < 10
    assert "did not end" in caplog.text
    assert ended(int((tmp_path / "pid").read_text()))
    caplog.clear()
    assert fresh(seven) is None  # not in this process ...
    monkeypatch.setattr(compiler, "_left", 0.5)
    assert fresh(seven) is None  # ... nor in another that comes soon
    assert fresh(seven) is None
    (message,) = [record.getMessage() for record in caplog.records if "last hour" in record.getMessage()]  # said once
    (marker,) = place.iterdir()
    assert message.endswith(f"remove {marker} to try again")
    assert runs(tmp_path) == 1
    monkeypatch.setenv("CC", "cc")
    assert fresh(seven).seven() == 7  # but this is another


def ended(number):
    """Whether that process has ended, or is a zombie that waits for its parent."""
    for _ in range(100):
        try:
            with open(f"/proc/{number}/stat") as about:
                if about.read().rpartition(")")[2].split()[0] == "Z":
                    return True
        except FileNotFoundError:
            return True
        time.sleep(0.02)
    return False


def test_one_that_hung_is_tried_again_later_and_what_is_kept_needs_none(becomes, seven, place, tmp_path, monkeypatch):
    becomes("sleep 60")
    monkeypatch.setattr(compiler, "_left", 0.1)
    assert fresh(seven) is None
    (marker,) = place.iterdir()
    os.utime(marker, (time.time() - 3700,) * 2)
    becomes('exec cc "$@"')
    monkeypatch.setattr(compiler, "_left", compiler._SECONDS)
    assert fresh(seven).seven() == 7
    os.utime(marker)
    monkeypatch.setattr(compiler, "build", None)
    assert fresh(seven).seven() == 7


def test_all_runs_of_a_process_share_its_time(becomes, seven, monkeypatch, caplog):
    becomes('sleep 0.4; exec cc "$@"')
    monkeypatch.setattr(compiler, "_left", 0.5)
    assert fresh(seven) is None
    assert "did not end" in caplog.text or "too long" in caplog.text
