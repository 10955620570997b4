"""Trained modules that read a target's states and draft for it: one file per kind."""
