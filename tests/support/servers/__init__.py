"""Real servers that the demo does not need; those that it needs are in ``testproject/services``."""
