"""`python -m fedlap` is `fedlap`."""

from .cli import main

main()
