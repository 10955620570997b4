"""Where the tokens to verify come from: one drafter a file."""
