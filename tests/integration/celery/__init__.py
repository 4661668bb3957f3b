"""Real workers on real brokers."""
