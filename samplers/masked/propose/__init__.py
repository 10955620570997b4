"""Propose policies: how candidates are scored, one method per file."""
