"""A local copy of the cluster: list, watch, store, index, and tell who asked."""
