"""Many prompts through one batch, and their events as they become certain."""
