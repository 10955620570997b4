"""Revise methods: mask or edit committed tokens again; one method per file."""
