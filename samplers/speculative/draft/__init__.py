"""Drafters, which propose the tokens to verify: one per file."""
