"""Cache methods: how the target's K/V are stored, and which of them are read; one rule per file."""
