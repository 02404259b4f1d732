"""The vocabulary: what a resource, an object, a selector and an error are. No I/O, no threads, no locks."""
