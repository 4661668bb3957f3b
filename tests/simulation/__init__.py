"""The core of the package in a world of one thread, where servers, network, clocks and callers are data.

Every step is drawn from a seed.
``python -m tests.simulation`` runs one world after the other, and tells of the first that goes wrong.
"""
