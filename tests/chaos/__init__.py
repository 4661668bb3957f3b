"""The lock under faults of every kind at random: three servers, clients of every kind, and a checker.

``python -m tests.chaos`` runs seasons one after the other. A season has its own servers and clients, draws its faults
from its seed, mends all of them, looks for what is left, and judges what the clients have written down.
"""
