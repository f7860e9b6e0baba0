"""The paper's tables and figures, ours beside theirs, from the files in the folder paper/ of the repository.

rows.py        a row: its sweep, its results, the printed numbers
tables.py      Tables 1 to 5
write.py       as Markdown and CSV
picture.py     as a picture
screen.py      on the screen
figures.py     the figures
"""
