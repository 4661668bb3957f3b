"""Apache Curator, as it is installed, and clients in a program of Java."""
