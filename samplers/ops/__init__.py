"""Tensor functions that methods share: a definition for any device, and faster paths where they exist."""
