"""Picture models: image tokenizers, and what reads and writes their published files."""
