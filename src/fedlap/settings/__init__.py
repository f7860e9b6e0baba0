"""Tables of a settings file as the things they stand for: shared by experiments and studies."""
