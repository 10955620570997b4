"""Models of transformers behind pardec's interface of a forward."""
