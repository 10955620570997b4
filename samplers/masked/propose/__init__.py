"""Propose methods: score candidates; one method per file."""
