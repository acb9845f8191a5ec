"""The nouns: frozen structs and plain arithmetic. No I/O; imports nothing else of ullage."""
