"""Cache policies: which positions per forward recomputes, one method per file."""
