"""Topics become lake tables: one Spark application, in rounds, exactly once.

`config` says which topics and where to, `discovery` finds them, `shares` cuts a round into tasks,
`task` is what Spark runs, `topic` is one topic's progress, `rounds` the loop. `status`, `replaying`
and `audit` are the other commands.
"""
