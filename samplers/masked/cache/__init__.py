"""Cache policies: which positions a forward recomputes, one method per file."""
