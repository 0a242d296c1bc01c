"""Lake tables that carry the offsets of a log: Delta and Iceberg, with no JVM in sight.

`table` says what a table and a commit are, `delta` and `iceberg` keep the promise, `committer`
brings a table and its dead letters forward together, `compaction` and `expiry` keep them small.
"""
