"""Propose policies: how candidates are scored, one method a file."""
