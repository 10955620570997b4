"""Query policies: which positions a row is asked with, as if there were no others, one method a file."""
