"""Chronik beside a real Apache Kafka, in one run, on one machine: ratios, not absolute figures."""
