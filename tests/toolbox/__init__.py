"""What tests, benchmarks and the demo share, by what it starts or drives; it imports none of them."""
