"""How the token maps of an image are sampled, one method a file."""
