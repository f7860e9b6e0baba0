"""A federation trained on one machine: a simulation, its rounds, its history, grids of them."""
