"""Cache methods: choose the positions that each forward computes; one method per file."""
