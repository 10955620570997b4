"""Views of a decode: live in a terminal, as one HTML file, as an image or an animation."""
