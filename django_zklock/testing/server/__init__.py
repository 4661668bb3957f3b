"""ZooKeeper in pure Python, in memory, with faults on demand: it knows nothing of locks, Django or kazoo."""
