"""What locks promise, on both kinds of server."""
