"""Select policies: which candidates are committed in a step, one method per file."""
