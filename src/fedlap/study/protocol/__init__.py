"""How a study runs: what a site answers, what the coordinator asks, and what both keep."""
