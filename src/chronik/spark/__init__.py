"""Topics as Spark tables: the `chronik` data source, and the pipeline to lake tables."""
