"""Image models: tokenizers, autoencoders, and reading and writing their published files."""
