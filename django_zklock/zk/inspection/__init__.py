"""The locks of others: who holds and who waits, and what may be done about it."""
