"""Storage: logs of record batches on disk, made durable by group commit."""
