"""Accounts whose balance is changed by a deliberately naive read-modify-write, to see a lock at work."""
