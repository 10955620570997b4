"""Checks the arguments of a call and lays its rows out for a loop."""
