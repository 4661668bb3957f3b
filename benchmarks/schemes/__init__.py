"""The classic lock schemes of ZooKeeper, each as a small contender, and how to measure them side by side."""
