"""Regression over sites: the coefficients and standard errors that pooled rows would have given."""
