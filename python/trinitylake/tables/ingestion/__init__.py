"""Ingestion: a writer that collects rows of many calls, and commits them in the background."""
