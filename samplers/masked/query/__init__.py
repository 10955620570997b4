"""Query policies: which positions of a row the model sees, one method per file."""
