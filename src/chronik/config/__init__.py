"""Settings: how a node is configured, and the Kafka settings that brokers and topics have."""
