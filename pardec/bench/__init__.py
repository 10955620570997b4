"""Measures where the time of decoding goes, and compares it with the machine's floor and other projects' loops."""
