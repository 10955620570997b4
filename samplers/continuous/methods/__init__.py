"""How the vectors of an image are sampled, one method per file."""
