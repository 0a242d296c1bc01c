"""Our own small Kafka client, for the command line, replication and Spark."""
