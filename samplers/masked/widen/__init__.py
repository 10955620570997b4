"""Widen policies: which further candidates are committed beside those selected, or fewer, one method per file."""
