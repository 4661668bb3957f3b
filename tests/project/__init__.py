"""The documents, the distributions, the demo and the tools of the tests."""
