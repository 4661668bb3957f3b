"""Applications that the web servers under test serve."""
