"""Programs that do one thing again and again on request, each in a process (and environment) of its own."""
