"""Branch methods: run several hypotheses of a row in one forward and keep one; one method per file."""
