"""How the target's logits change: one rule a file."""
