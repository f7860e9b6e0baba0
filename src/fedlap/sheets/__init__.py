"""Files of rows and columns, as people have them: CSV and Parquet, read cell by cell, and what is wrong with them."""
