"""The command `pardec`: results to stdout, the rest to stderr; exit 0 done, 1 failed, 2 misuse, 130 interrupted."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import NoReturn

from pardec.models.errors import ModelError, PardecError, SpecError
from pardec.models.printable import plain

from ..executors import BatchError
from ..requests.other_names import WORDS


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs one command and leaves with its exit code."""
    sys.exit(run(sys.argv[1:] if arguments is None else list(arguments)))


def run(arguments: Sequence[str]) -> int:
    """Runs one command; errors become one line, and one more that says what would work."""
    if "--debug" not in arguments:
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # its advice is for those who call it themselves

    import typer

    from .app import app

    warnings.formatwarning = _warning

    # typer brings its own copy of click or uses an installed one, by version; its public names lead to either.
    usage_error = typer.BadParameter.__bases__[0]
    try:
        code = app(list(arguments) or ["--help"], prog_name="pardec", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except (KeyboardInterrupt, typer.Abort):
        return report("interrupted", None, 130)
    except BrokenPipeError:
        # Whoever read stdout has enough; the interpreter's last flush must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if "--debug" in arguments:
            traceback.print_exc()
        if isinstance(error, usage_error):
            context = getattr(error, "ctx", None)
            command = context.command_path if context is not None else "pardec"
            message = getattr(error, "format_message", error.__str__)().replace("Value error, ", "")  # pydantic's words
            foreign = str(getattr(error, "option_name", None) or "").lstrip("-").replace("-", "_")
            python = f"; in Python's words: {WORDS[foreign]}" if foreign in WORDS else ""
            return report(message, f'run "{command} --help" for what it takes{python}', 2)
        if isinstance(error, BatchError) and not error.leads:
            return 1
        if isinstance(error, PardecError):
            return report(str(error), error.hint or _way_out(error), 2 if isinstance(error, SpecError) else 1)
        if isinstance(error, OSError):
            message = f"{error.strerror or error}: {error.filename}" if error.filename else str(error)
            return report(message, "check that the path is there, and may be read and written", 1)
        return report(f"{type(error).__name__}: {error}", "this is a bug; --debug shows where it happened", 1)


def _way_out(error: PardecError) -> str:
    """What would work where the error itself does not say."""
    if isinstance(error, ModelError):
        return 'copy or download the checkpoint again as it was published, or name another ("pardec list models")'
    return "run the command with --help for what it takes, or with --debug for where it stopped"


def report(message: str, hint: str | None, code: int) -> int:
    """Says what went wrong on stderr and passes the exit code on."""
    for line in (f"error: {message}", hint):
        if line:
            print(plain(" ".join(line.split())), file=sys.stderr)
    return code


def _warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """One line, without the place in the code."""
    return f"warning: {plain(str(message))}\n"
