"""Worker processes for work that may hang or take all memory: queries, rows, foreign files, maintenance of tables."""
