"""The tests of each module of the package, at the path that the module has there."""
