"""Select methods: choose the candidates that a step commits; one method per file."""
