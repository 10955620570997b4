"""Checkpoint files: locations, configs, weights, tokenizers, adapters and GGUF, without knowledge of models."""
