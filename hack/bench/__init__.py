"""Benchmarks against other client libraries: `make bench`, `make bench-faults`; README.md tells how to read them."""
