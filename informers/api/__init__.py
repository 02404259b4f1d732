"""Asking the API server: where it is, how to talk to it, what it serves."""
