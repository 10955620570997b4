"""Widen methods: add candidates to those selected, or remove some; one method per file."""
