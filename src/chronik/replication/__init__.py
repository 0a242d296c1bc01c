"""One partition and its replicas: what is in sync, which producers write to it, what is stored."""
