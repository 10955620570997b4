"""Keys and values in fewer bytes: what a chunk of tokens becomes, and a cache that keeps the newest as they are."""
