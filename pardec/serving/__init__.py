"""Serving many prompts through one batch, and streaming the events of a decode."""
