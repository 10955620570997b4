"""Finish methods: decide when all open positions are committed at once, or a row ends; one method per file."""
