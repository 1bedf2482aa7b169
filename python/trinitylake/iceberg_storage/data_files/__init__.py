"""Reading and writing of data files, and the distribution of rows over files."""
