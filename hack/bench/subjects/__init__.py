"""The libraries that are measured, each a program of its own."""
