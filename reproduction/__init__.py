"""The paper's tables and figures, ours beside theirs: `python -m reproduction`, in a clone of the repository.

published.toml  the numbers that the paper prints
specs/          a sweep for each row of its tables
results/        what has run, a line a run
experiments/    single questions, their answers beside them
notes/          the lab book

rows.py         a row: its sweep, its results, the printed numbers
tables.py       Tables 1 to 5
write.py        as Markdown and CSV
picture.py      as a picture
screen.py       on the screen
figures.py      the figures
pages.py        the tables in docs/, in the notes and in the README
check.py        whether the committed results are what they say
"""
