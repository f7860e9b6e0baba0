"""What the members of a study agree on before it runs, and the keys they know each other by."""
