"""How many tokens to draft: one controller a file."""
