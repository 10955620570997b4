"""How several texts of a prompt come from one pass: one rule a file."""
