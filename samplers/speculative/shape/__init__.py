"""How a drafting model's guesses grow: one shape of draft a file."""
