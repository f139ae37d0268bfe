"""How fast, how much memory, beside what: ``python -m benchmarks`` (``make bench``)."""
