"""Search for texts that parsers stumble over."""
