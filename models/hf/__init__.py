"""Models of transformers through pardec's forward contract."""
