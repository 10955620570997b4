"""Drafters, which propose the tokens to verify: one a file."""
