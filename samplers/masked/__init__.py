"""Stages of the masked loop: proposers, selects, logits, widen and finish policies, one method a file."""
