"""Block policies: which open positions may be committed, where blocks follow no fixed grid; one method per file."""
