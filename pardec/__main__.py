"""`python -m pardec` is the command `pardec`."""

from pardec.cli import main

main()
