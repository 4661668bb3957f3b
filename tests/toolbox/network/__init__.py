"""What lies between a client and its server: ports, proxies, names, certificates."""
