"""Files of prompts, rows and results."""
