"""Logits methods: change the logits before candidates are proposed; one method per file."""
