"""What a person or a monitor sees of a node over HTTP. Reads, and changes nothing."""
