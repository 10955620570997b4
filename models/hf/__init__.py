"""Models of transformers behind pardec's forward contract."""
