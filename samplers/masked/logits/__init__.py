"""Logits policies: what changes the logits before candidates are taken, one method per file."""
