"""Kafka's wire protocol: bytes to values and values to bytes, with no input or output."""
