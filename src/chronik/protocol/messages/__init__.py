"""Requests and responses, each declared once for all of its versions; one file per API family.

Field names are Kafka's, snake-cased. A field that some version lacks, that is tagged, or for which
Kafka names a default has one here too; so has `throttle_time_ms`, which is nearly always zero. The
zero of a nullable string is null, of an array the empty one. `apis` says which versions are served
and which of them are flexible.
"""
