"""Which drafted tokens stand: one rule a file."""
