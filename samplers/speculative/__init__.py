"""Speculative decoding of autoregressive models: one forward verifies several tokens."""
