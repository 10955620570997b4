"""A scoring function of one's own, from a Python file: loaded once, and every way it can fail said in one line."""

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
from pardec.tasks.base import Problem

_FORM = "a scorer is named path/to/file.py:function and called with (problem, text)"


class ScoreError(PardecError):
    """A scoring function raised, or returned what is no score."""


def load(name: str) -> Callable[[Problem, str], float | None]:
    """The function that `path/to/file.py:function` names, with its results checked.

    Raises:
        SpecError: no such file or function, a file that fails when it is run, or a function that cannot take
            (problem, text).
    """
    given, _, attribute = name.rpartition(":")
    path = Path(given).resolve()
    if not path.is_file():
        raise SpecError(f"the scorer {name!r} names no file that is there", hint=_FORM)
    module = _module(path, name)
    function = getattr(module, attribute, None)
    if not callable(function):
        near = did_you_mean(attribute, [key for key, value in vars(module).items() if inspect.isfunction(value)])
        raise SpecError(f"{given} has no function {attribute!r}{near}", hint=_FORM)
    try:
        inspect.signature(function).bind(None, "")
    except TypeError as error:
        raise SpecError(f"the scorer {name!r} cannot take two arguments: {error}", hint=_FORM) from error
    except ValueError:  # a builtin without a signature: the first call will tell
        pass

    def score(problem: Problem, text: str) -> float | None:
        try:
            value = function(problem, text)
        except Exception as error:
            where = _where(error, path)
            raise ScoreError(
                f"the scorer {name!r} failed on problem {problem.id}: {type(error).__name__}: {one_line(error)}",
                hint=f"it was raised at {where}",
            ) from error
        return _checked(value, name, problem)

    return score


def _module(path: Path, name: str) -> ModuleType:
    """The file as a module of its own; a file that is unchanged is run once."""
    content = path.read_bytes()
    key = f"pardec_scorer_{hashlib.sha256(str(path).encode() + content).hexdigest()[:16]}"
    if key in sys.modules:
        return sys.modules[key]
    spec = importlib.util.spec_from_file_location(key, path)
    if spec is None or spec.loader is None:
        raise SpecError(f"{path} is no Python file", hint=_FORM)
    module = importlib.util.module_from_spec(spec)
    sys.modules[key] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[key]
        said = f"{type(error).__name__}: {one_line(error)}"
        raise SpecError(f"the scorer {name!r} cannot be loaded: {said}", hint=f"see {_where(error, path)}") from error
    return module


def _checked(value: Any, name: str, problem: Problem) -> float | None:
    """`value` as a score; ScoreError if it is none."""
    number = value.item() if getattr(value, "size", None) == 1 and hasattr(value, "item") else value  # of numpy
    if number is None:
        return None
    if isinstance(number, bool | int | float) and 0 <= number <= 1:
        return float(number)
    shown = one_line(ValueError(repr(value)), 80)
    raise ScoreError(
        f"the scorer {name!r} returned {shown} for problem {problem.id}",
        hint="it returns a number in 0..1, True or False, or None where it cannot tell",
    )


def _where(error: BaseException, path: Path) -> str:
    """The deepest line of the file that the error passed through."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    if isinstance(error, SyntaxError) and error.filename == str(path):
        lines.append(error.lineno)
    return f"{path.name}, line {lines[-1]}" if lines else str(path)
