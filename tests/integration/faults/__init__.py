"""Locks while servers and networks fail."""
