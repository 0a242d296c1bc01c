"""Cluster metadata: commands are decided, logged as records, applied to an image, answered."""
