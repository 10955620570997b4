"""Runs the command `pardec` for `python -m pardec`."""

from .cli import main

main()
