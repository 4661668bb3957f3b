"""The tests; CONTRIBUTING.md says where each belongs."""
