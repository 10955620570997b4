"""How the vectors of an image are sampled, one method a file."""
