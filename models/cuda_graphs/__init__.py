"""Forwards of a fixed shape, captured once as CUDA graphs and replayed."""
