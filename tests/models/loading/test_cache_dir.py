"""The cache folder: files are written where no other user can write, and read from nowhere else."""

from __future__ import annotations

import os
import pwd
import stat
from pathlib import Path

import pytest

from pardec.models.files import cache_dir

OTHER = 12345  # another user
NAME = "table"


@pytest.fixture
def place(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("PARDEC_CACHE", str(folder))
    cache_dir._warn_once.cache_clear()
    return folder


@pytest.fixture
def others_umask():
    before = os.umask(0)
    yield
    os.umask(before)


def write(content=b"mine"):
    with cache_dir.private("below") as folder:
        cache_dir.write(folder / NAME, content)


def read():
    with cache_dir.private("below") as folder:
        return cache_dir.require_own(folder / NAME).read_bytes()


def mode(path):
    return stat.S_IMODE(path.lstat().st_mode)


def give_away(path, monkeypatch):
    """Gives the path to another user; without root rights, the current user id is patched instead."""
    if os.geteuid() == 0:
        os.chown(path, OTHER, OTHER, follow_symlinks=False)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: OTHER)


def test_where_it_is(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PARDEC_CACHE", "~/own")
    monkeypatch.setenv("XDG_CACHE_HOME", "/shared")
    assert cache_dir.cache_folder() == tmp_path / "own"
    monkeypatch.delenv("PARDEC_CACHE")
    assert cache_dir.cache_folder() == Path("/shared/pardec")
    for none in ("", "relative"):  # to be ignored, as the specification of these folders has it
        monkeypatch.setenv("XDG_CACHE_HOME", none)
        assert cache_dir.cache_folder() == tmp_path / ".cache" / "pardec"


def test_it_is_never_below_the_working_directory(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name in ("own", "./own", "~nobody-of-this-name/own"):
        monkeypatch.setenv("PARDEC_CACHE", name)
        with pytest.raises(OSError, match="is not an absolute path"), cache_dir.private():
            pass
    monkeypatch.delenv("PARDEC_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME")

    def nobody(number):
        raise KeyError(number)

    monkeypatch.setattr(pwd, "getpwuid", nobody)
    with pytest.raises(OSError, match="there is no home folder"), cache_dir.private():
        pass
    assert not list(tmp_path.iterdir())


def test_without_HOME_it_is_where_the_system_says(monkeypatch):
    monkeypatch.delenv("PARDEC_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME")
    assert cache_dir.cache_folder() == Path(pwd.getpwuid(os.getuid()).pw_dir, ".cache", "pardec")


def test_what_is_made_is_for_the_user_alone_whatever_the_umask(monkeypatch, tmp_path, others_umask):
    place = tmp_path / "new" / "also new" / "cache"
    monkeypatch.setenv("PARDEC_CACHE", str(place))
    write()
    assert read() == b"mine"
    for folder in (tmp_path / "new", tmp_path / "new" / "also new", place, place / "below"):
        assert mode(folder) == 0o700
    assert mode(place / "below" / NAME) == 0o600


def test_a_folder_among_those_of_all_users_will_do(monkeypatch, tmp_path):
    tmp_path.chmod(0o1777)
    monkeypatch.setenv("PARDEC_CACHE", str(tmp_path / "cache"))
    write()
    assert read() == b"mine"


@pytest.mark.parametrize("which", ["folder", "below", "file"])
@pytest.mark.parametrize("how", ["another user's", "for all", "for the group", "a link", "something else"])
def test_what_others_may_have_written_is_not_read(place, monkeypatch, tmp_path, which, how):
    write()
    path = {"folder": place, "below": place / "below", "file": place / "below" / NAME}[which]
    if how == "another user's":
        give_away(path, monkeypatch)
    elif how == "for all":
        path.chmod(mode(path) | 0o002)
    elif how == "for the group":
        path.chmod(mode(path) | 0o020)
    else:
        path.rename(tmp_path / "elsewhere")
        if how == "a link":
            path.symlink_to(tmp_path / "elsewhere")
        elif which == "file":
            path.mkdir()
        else:
            path.write_bytes(b"mine")
    said = {"another user's": "belongs to another user", "for all": "others may write", "for the group": "others may"}
    with pytest.raises(OSError, match=said.get(how, "is a link" if how == "a link" else "of the wrong file type")):
        read()
    if which != "file":
        with pytest.raises(OSError, match=str(path)):
            write(b"again")
        assert all(file.read_bytes() == b"mine" for file in tmp_path.rglob(NAME))
    elif how != "something else":  # what is saved takes its place, and a link's target stays as it is
        monkeypatch.undo()
        monkeypatch.setenv("PARDEC_CACHE", str(place))
        write(b"again")
        assert read() == b"again"
        assert mode(path) == 0o600
        assert not path.is_symlink()
        if how == "a link":
            assert (tmp_path / "elsewhere").read_bytes() == b"mine"


def test_its_path_leads_to_the_folder_that_was_looked_at(place, tmp_path):
    """The owner of a parent folder may replace the cache folder; paths still lead to the folder that was checked."""
    write()
    with cache_dir.private("below") as folder:
        place.rename(tmp_path / "away")
        (place / "below").mkdir(parents=True)
        (place / "below" / NAME).write_bytes(b"planted")
        assert cache_dir.require_own(folder / NAME).read_bytes() == b"mine"


def test_a_file_is_on_the_disk_before_it_has_its_name(place, monkeypatch):
    done, sync, replace = [], os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda number: done.append(stat.S_IFMT(os.fstat(number).st_mode)) or sync(number))
    monkeypatch.setattr(os, "replace", lambda *names: done.append("named") or replace(*names))
    write()
    assert done == [stat.S_IFREG, "named", stat.S_IFDIR]


def test_a_write_that_fails_leaves_nothing(place, monkeypatch):
    write()

    def full(number):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write(b"more")
    assert [file.name for file in (place / "below").iterdir()] == [NAME]
    assert read() == b"mine"


def test_no_folder_stays_open(place):
    def opened():
        return len(os.listdir("/proc/self/fd"))

    if not Path("/proc/self/fd").is_dir():
        pytest.skip("no /proc")
    write()
    count = opened()
    for _ in range(3):
        write()
        read()
    (place / "below").chmod(0o777)
    with pytest.raises(OSError, match="others may write"):
        write()
    assert opened() == count


def test_it_is_said_once(place, caplog):
    for _ in range(3):
        cache_dir.warn_uncached(OSError(28, "No space left on device", "some file"))
    assert [record.getMessage() for record in caplog.records] == [
        f"the cache folder {place} is not used, so every process compiles and computes again: No space left on device"
    ]
