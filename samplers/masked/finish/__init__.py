"""Finish policies: when everything open is committed at once, or a row ends, one method per file."""
