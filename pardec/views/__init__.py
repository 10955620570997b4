"""A canvas made visible: live in a terminal, as one HTML file, as a picture or an animation."""
