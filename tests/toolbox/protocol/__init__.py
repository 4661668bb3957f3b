"""ZooKeeper's protocol, written once more for the tests, and clients that speak it."""
