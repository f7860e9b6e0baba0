"""A regression over real sites: what a site answers, and how the server asks."""
