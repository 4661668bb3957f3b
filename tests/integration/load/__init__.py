"""Many locks, many waiters, long runs."""
