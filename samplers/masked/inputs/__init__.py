"""Inputs policies: what changes the input embeddings of masked positions, one method per file."""
