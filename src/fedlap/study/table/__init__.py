"""A table of a study: a file read cell by cell, checked against its columns, and as numbers."""
