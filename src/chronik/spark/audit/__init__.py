"""Is it all true? Replicas against each other, and the tables against the log; see `job`."""
