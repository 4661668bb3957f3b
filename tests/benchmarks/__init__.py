"""The benchmarks: their schemes, what is made of their figures, and small runs."""
