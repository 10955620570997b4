"""How the token maps of an image are sampled, one method per file."""
