"""Experiments as data: a settings file as the list of runs it stands for, carried out once and summed up."""
