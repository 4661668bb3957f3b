"""What tests and benchmarks share: fixtures, clients, programs, launchers of servers."""
