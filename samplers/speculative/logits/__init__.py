"""Logits methods: change the target's logits; one rule per file."""
