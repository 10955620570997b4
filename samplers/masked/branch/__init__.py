"""Branch policies: a row is asked as several hypotheses in one forward, one of which survives, one method per file."""
