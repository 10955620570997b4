"""Inputs methods: add vectors to the input embeddings of masked positions; one method per file."""
