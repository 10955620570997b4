"""Loads what a forward needs by name: files, config, weights, tokenizer, device and dtype."""
