"""The decode loops: generators of events."""
