"""Pools, keys, listeners, and contenders in a queue."""
