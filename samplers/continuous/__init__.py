"""How the vectors of a picture are drawn."""
