"""Groups of the classic protocol: the clients assign."""
