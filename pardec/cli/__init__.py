"""The command `pardec`: results on stdout, messages on stderr; exit code 0, 1 failure, 2 misuse, 130 interrupt."""

from __future__ import annotations

import logging
import os
import re
import sys
import traceback
import warnings
from collections.abc import Sequence
from itertools import pairwise
from typing import NoReturn

from pardec.models.errors import ModelError, PardecError, SpecError
from pardec.models.printable import plain

from ..executors import BatchError
from ..requests.settings import OTHER_NAMES


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs one command and exits with its exit code."""
    try:
        code = run(sys.argv[1:] if arguments is None else list(arguments))
    except KeyboardInterrupt:  # while modules are imported
        code = report("interrupted", None, 130)
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Runs one command; an error is printed as one line, and a hint as a second."""
    if "--debug" not in arguments:
        _silence_libraries()

    import typer

    warnings.formatwarning = _format_warning  # before imports, which may name a broken file

    from . import wording
    from .app import command_line

    # By version, typer has its own copy of click or uses the installed one; this base class is of the right one.
    usage_error = typer.BadParameter.__bases__[0]
    try:
        code = command_line()(list(arguments) or ["--help"], prog_name="pardec", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except (KeyboardInterrupt, typer.Abort):
        return report("interrupted", None, 130)
    except Exception as error:
        if "--debug" in arguments:
            if isinstance(error, PardecError) and error.hint:
                error.__notes__.remove(error.hint)  # printed below, with the names of options
            traceback.print_exc()
        if isinstance(error, usage_error):
            context = getattr(error, "ctx", None)
            named = [word for word in arguments[:1] if word in command_line().commands]
            command = context.command_path if context is not None else " ".join(["pardec", *named])
            message = _without_pydantic(error, arguments)
            option = str(getattr(error, "option_name", None) or "")
            text = OTHER_NAMES.get(option[2:].replace("-", "_"), "") if option.startswith("--") else ""
            worded = wording.as_options(text, wording.option_names(command_line(), arguments))
            suggestion = f"; {worded}" if worded != text else f"; in Python: {text}" if text else ""
            return report(message, f'run "{command} --help" for its options{suggestion}', 2)
        if isinstance(error, BatchError) and not error.leads:
            return 1
        if isinstance(error, PardecError):
            of_a_file = re.search(r", line \d+\b", str(error))  # a file has fields, not options
            names = {} if of_a_file else wording.option_names(command_line(), arguments)
            message, hint = (
                wording.as_options(text, names) for text in (str(error), error.hint or _default_hint(error))
            )
            return report(message, hint, 2 if isinstance(error, SpecError) else 1)
        if isinstance(error, OSError):
            message = f"{error.strerror or error}: {error.filename}" if error.filename else str(error)
            return report(message, "check that the path exists and that you may read and write it", 1)
        return report(f"{type(error).__name__}: {error}", "this is a bug; --debug shows the traceback", 1)


_PYDANTIC = (  # pydantic's words, in which typer refuses a value
    ("Value error, ", ""),
    ("Input should be greater than or equal to ", "must be at least "),
    ("Input should be less than or equal to ", "must be at most "),
    ("Input should be a valid integer, unable to parse string as an integer", "must be a whole number"),
    ("Input should be a valid number, unable to parse string as a number", "must be a number"),
)


def _without_pydantic(error: Exception, arguments: Sequence[str]) -> str:
    """The message of a wrong option in pardec's words, with the value if the command line has it."""
    message = text = getattr(error, "format_message", error.__str__)()
    for theirs, ours in _PYDANTIC:
        message = message.replace(theirs, ours)
    names = getattr(getattr(error, "param", None), "opts", ())
    words = [word for argument in arguments for word in argument.split("=", 1)]
    values = [value for name, value in pairwise(words) if name in names]
    return f"{message}, got {values[-1]!r}" if values and "Input should be" in text else message


def _silence_libraries() -> None:
    """Turns off warnings meant for programmers who call a library, such as torchao's when diffusers imports it."""
    for name in ("TRANSFORMERS_VERBOSITY", "DIFFUSERS_VERBOSITY"):
        os.environ.setdefault(name, "error")
    logging.getLogger("torchao").setLevel(logging.ERROR)
    logging.getLogger("torch.utils._pytree").addFilter(lambda record: record.levelno >= logging.ERROR)


def _default_hint(error: PardecError) -> str:
    """The hint for an error without one."""
    if isinstance(error, ModelError):
        return 'copy or download the published checkpoint again, or choose another ("pardec list models")'
    return "run the command with --help for its options, or with --debug for the traceback"


def report(message: str, hint: str | None, code: int) -> int:
    """Prints an error and its hint on stderr and returns the exit code."""
    for line in (f"error: {message}", hint):
        if line:
            print(plain(" ".join(line.split())), file=sys.stderr)
    return code


def _format_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """One line, without file name and line number."""
    return f"warning: {plain(str(message))}\n"
