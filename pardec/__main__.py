"""`python -m pardec` is the command `pardec`."""

from .cli import main

main()
