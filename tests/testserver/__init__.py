"""The server for tests: its parts, its answers beside those of a real one, and kazoo's own tests on both."""
