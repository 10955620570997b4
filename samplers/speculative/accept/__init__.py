"""Accept methods: decide which drafted tokens are accepted; one rule per file."""
