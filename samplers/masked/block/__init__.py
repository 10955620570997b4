"""Block policies: which open positions compete, where that is no block of a grid, one method a file."""
