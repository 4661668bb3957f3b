"""Several parts at once: workers, faults, load, ensembles, TLS."""
