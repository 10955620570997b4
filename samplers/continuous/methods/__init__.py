"""Methods that sample the vectors of an image; one per file."""
