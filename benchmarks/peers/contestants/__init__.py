"""One module a contestant, each run in its own environment; none but `fedlap` imports fedlap."""
