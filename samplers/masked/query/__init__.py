"""Query policies: which positions a row is asked with, the others being as if they were not there, one method a file."""
