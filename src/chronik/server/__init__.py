"""The Kafka listener: bytes to requests, requests to handlers, responses to bytes."""
