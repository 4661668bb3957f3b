"""ZooKeeper servers, alone and in ensembles, and clients that look at them."""
