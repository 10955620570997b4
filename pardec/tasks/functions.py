"""User scoring functions, passed in or from a Python file; each failure is reported in one line."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from pardec.models.errors import PardecError, SpecError, did_you_mean, one_line

from .base import Problem

_FORM = "a scorer is named path/to/file.py:function and called with (problem, text)"


class ScoreError(PardecError):
    """A scoring function raised an error or did not return a score."""


def load(name: str) -> Callable[[Problem, str], float | None]:
    """The function that `path/to/file.py:function` names, with its results checked.

    Raises:
        SpecError: no such file or function, a file that fails when it is run, or a function that cannot take
            (problem, text).
    """
    source, _, attribute = name.rpartition(":")
    path = Path(source).resolve()
    if not path.is_file():
        raise SpecError(f"the scorer {name!r} names a file that does not exist", hint=_FORM)
    module = _module(path, name)
    function = getattr(module, attribute, None)
    if not callable(function):
        near = did_you_mean(attribute, [key for key, value in vars(module).items() if inspect.isfunction(value)])
        raise SpecError(f"{source} has no function {attribute!r}{near}", hint=_FORM)
    return checked(function, name, path)


def checked(
    function: Callable[..., Any], name: str, path: Path | None = None
) -> Callable[[Problem, str], float | None]:
    """A function as a scorer called `name`, with its results checked; `path` is the file that errors are placed in.

    Raises:
        SpecError: it cannot take (problem, text).
    """
    try:
        inspect.signature(function).bind(None, "")
    except TypeError as error:
        raise SpecError(f"the scorer {name!r} cannot take two arguments: {error}", hint=_FORM) from error
    except ValueError:  # a builtin without a signature: the first call will tell
        pass
    home = path or _home(function)

    def score(problem: Problem, text: str) -> float | None:
        try:
            value = function(problem, text)
        except (Exception, SystemExit) as error:
            raise ScoreError(
                f"the scorer {name!r} failed on problem {problem.id}: {type(error).__name__}: {one_line(error)}",
                hint=f"it was raised at {_where(error, home)}" if home else None,
            ) from error
        return _checked(value, name, problem)

    return score


def name_of(scorer: str | Callable[..., Any]) -> str:
    """The name of a scorer in errors and in a run's folder."""
    if isinstance(scorer, str):
        return scorer
    kind = scorer if hasattr(scorer, "__qualname__") else type(scorer)
    return f"{kind.__module__}.{kind.__qualname__}"


def code_of(scorer: str | Callable[..., Any] | None) -> str | None:
    """The source of a user's scorer, so that a run resumes only with the same one; None without source."""
    if isinstance(scorer, str):
        return Path(scorer.rpartition(":")[0]).read_text(encoding="utf-8") if ":" in scorer else None
    try:
        return None if scorer is None else inspect.getsource(scorer)
    except (OSError, TypeError):
        return None


def importable(scorer: str | Callable[..., Any]) -> bool:
    """Whether another process can import the function by its name."""
    if isinstance(scorer, str):
        return True
    target: Any = sys.modules.get(getattr(scorer, "__module__", None) or "")
    for name in getattr(scorer, "__qualname__", "").split("."):
        target = getattr(target, name, None)
    return target is scorer and scorer.__module__ != "__main__"


def _home(function: Callable[..., Any]) -> Path | None:
    try:
        return Path(inspect.getsourcefile(function) or "")
    except TypeError:
        return None


def _module(path: Path, name: str) -> ModuleType:
    """Imports the file as a separate module; an unchanged file is run only once."""
    content = path.read_bytes()
    key = f"pardec_scorer_{hashlib.sha256(str(path).encode() + content).hexdigest()[:16]}"
    if key in sys.modules:
        return sys.modules[key]
    spec = importlib.util.spec_from_file_location(key, path)
    if spec is None or spec.loader is None:
        raise SpecError(f"{path} is not a Python file", hint=_FORM)
    module = importlib.util.module_from_spec(spec)
    sys.modules[key] = module  # dataclasses look their module up
    try:
        exec(compile(content, path, "exec"), module.__dict__)  # cached bytecode may be that of a file just changed
    except (Exception, SystemExit) as error:  # a script that ends the process would end it without a word
        del sys.modules[key]
        message = f"{type(error).__name__}: {one_line(error)}"
        raise SpecError(
            f"the scorer {name!r} cannot be loaded: {message}", hint=f"see {_where(error, path)}"
        ) from error
    return module


def _checked(value: Any, name: str, problem: Problem) -> float | None:
    """`value` as a score; ScoreError if it is none."""
    number = value.item() if getattr(value, "size", None) == 1 and hasattr(value, "item") else value  # numpy
    if number is None:
        return None
    if isinstance(number, bool | int | float) and 0 <= number <= 1:
        return float(number)
    text = one_line(ValueError(repr(value)), 80)
    raise ScoreError(
        f"the scorer {name!r} returned {text} for problem {problem.id}",
        hint="it returns a number in 0..1, True or False, or None where it cannot tell",
    )


def _where(error: BaseException, path: Path) -> str:
    """The deepest line of the file that the error passed through."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    if isinstance(error, SyntaxError) and error.filename == str(path):
        lines.append(error.lineno)
    return f"{path.name}, line {lines[-1]}" if lines else str(path)
