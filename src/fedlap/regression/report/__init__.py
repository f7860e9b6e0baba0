"""The report of a regression over sites: one HTML page that needs nothing beside it."""
