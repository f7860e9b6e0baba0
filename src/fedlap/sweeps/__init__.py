"""Many runs of one experiment: a grid of settings and seeds, carried out once, resumed at any moment, and chosen from.

cells.py     a spec with a [sweep] section, as the list of runs it stands for (axes.py: what may be swept)
results.py   one JSON line a run
carry.py     the runs that are missing, as one compiled batch or on all cores (processes.py)
choose.py    which setting wins: the paper's way, and the honest one
winners.py   the table of those that won, with which a sweep ends
"""
