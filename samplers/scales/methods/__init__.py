"""Methods that sample the token maps of an image; one per file."""
