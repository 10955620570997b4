"""Widen policies: which further candidates are committed beside those selected, one method a file."""
