"""Cache policies: which positions a forward asks again, one method a file."""
