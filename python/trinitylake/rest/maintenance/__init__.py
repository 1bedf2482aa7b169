"""Maintenance by the server: on a schedule, and estimates of what it would delete."""
