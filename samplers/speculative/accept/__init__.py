"""Which drafted tokens are accepted: one rule a file."""
