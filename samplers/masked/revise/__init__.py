"""Revise policies: which committed tokens are masked or edited again, one method per file."""
