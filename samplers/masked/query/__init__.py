"""Query methods: choose the positions of a row that the model sees; one method per file."""
