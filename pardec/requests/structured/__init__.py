"""`response_format=`: answers that are JSON of a given schema."""
