"""KV caches: the plain one by slot, those that store or read a part, and what attends to them in another way."""
