"""Other libraries' ways of calling pardec, one module each; importing this package imports none of them."""
