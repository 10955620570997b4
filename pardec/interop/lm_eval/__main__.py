"""`python -m pardec.interop.lm_eval`: lm-eval's command line, with the model `pardec` registered."""

from __future__ import annotations

import sys

from lm_eval.__main__ import cli_evaluate

import pardec.interop.lm_eval  # noqa: F401
from pardec.models.errors import PardecError, SpecError


def main() -> int:
    """Runs lm-eval on `sys.argv`; prints an error of pardec with its hint on stderr and returns the exit code."""
    try:
        cli_evaluate()
    except PardecError as error:
        print(f"error: {error}", file=sys.stderr)
        if error.hint:
            print(error.hint, file=sys.stderr)
        return 2 if isinstance(error, SpecError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
