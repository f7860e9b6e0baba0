"""A study across real sites: what its members agree on, and what each does with its own file."""
