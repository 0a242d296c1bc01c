"""The command line: one noun per command group."""
