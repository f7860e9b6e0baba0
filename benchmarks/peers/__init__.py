"""fedlap beside its peers: the same rounds in each, in an environment of its own, one at a time in turn."""
