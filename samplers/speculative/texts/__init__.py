"""Texts methods: decode several texts of a prompt in one pass; one rule per file."""
