"""The exceptions of pardec. The message names the fault in one line, and `hint` gives a way out."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path

from .printable import line

AGAIN = "download or copy the file again"
_POINTER = b"version https://git-lfs"


class PardecError(Exception):
    """Base of every error pardec raises on purpose. `str(error)` is the first line, `error.hint` the second.

    The hint is a note of the exception (PEP 678) too, so that an uncaught error prints it.
    """

    def __init__(self, message: str, hint: str | None = None) -> None:
        message = line(message)  # it may repeat what a file or a caller said
        super().__init__(message, hint)
        self.message = message
        self.hint = hint
        if hint:
            self.add_note(hint)

    def __str__(self) -> str:
        return self.message


class ModelError(PardecError, ValueError):
    """A checkpoint, its configuration or a request to a model cannot be served."""


class CacheError(PardecError, ValueError):
    """A KV cache does not fit the plan or the model it is used with."""


class CapacityError(CacheError):
    """A request needs more slots or positions than there are."""


class SpecError(PardecError, ValueError):
    """A sampler spec or an argument of a request is not valid."""


class ArgumentError(ModelError, SpecError):
    """An invalid argument of `load`; a plain ModelError may also mean a damaged checkpoint."""


class UnknownModelError(ArgumentError, LookupError):
    """No embedded model, folder or hub repository has the given name."""


class UnknownNameError(SpecError, LookupError):
    """A name that is not in the registry it was looked up in."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """` (did you mean 'x'?)` for the nearest known names, or an empty string."""
    folded = {entry.lower(): entry for entry in known}
    near = [folded[match] for match in get_close_matches(name.lower(), folded, n=3, cutoff=0.6)]
    return f" (did you mean {' or '.join(repr(entry) for entry in near)}?)" if near else ""


def install(extra: str) -> str:
    """How to install an extra: from the clone, since another package has the name pardec on the index."""
    return f'in the clone of pardec: pip install -e ".[{extra}]"'


def damage(file: Path) -> ModelError | None:
    """The error if `file` is a link to a file that is missing, or a pointer of Git LFS; None if it is neither."""
    if file.is_symlink() and not file.exists():
        return ModelError(
            f"{file} is a link to a file that is not there",
            "copy the files that the links of its folder name (cp -rL), or download them again",
        )
    with suppress(OSError), file.open("rb") as start:
        if start.read(len(_POINTER)) == _POINTER:
            return ModelError(f"{file} is a pointer of Git LFS, not the file itself", "git lfs pull")
    return None


def unreadable(file: Path, problem: str, hint: str = AGAIN) -> ModelError:
    """The error of a file that cannot be read; `problem` is what follows its name, unless `damage` says why."""
    return damage(file) or ModelError(f"{file} {problem}", hint)


def there(file: Path) -> bool:
    """Whether there is such a file. Raises ModelError for a link to one that is not there."""
    if not file.is_file() and (error := damage(file)) is not None:
        raise error
    return file.is_file()


def one_line(error: BaseException, limit: int = 300) -> str:
    """The message of another library's error, on one line of at most `limit` characters."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= limit else text[: limit - 3] + "..."


def listed(names: Iterable[str], limit: int = 10) -> str:
    """Names joined by commas: the first `limit`, then how many more there are."""
    entries = list(names)
    text = ", ".join(entries[:limit])
    return text if len(entries) <= limit else f"{text} and {len(entries) - limit} more"
