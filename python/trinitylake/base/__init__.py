"""Helpers that every layer uses. Of `trinitylake`, they import only the errors and `_core`.

`arguments` checks arguments, `qualified_names` parses names of objects, `durations` parses "7 days", `properties`
changes properties, `commit_info` is the description of a commit, `secret_values` resolves references to secrets,
`pickling` pickles handles, `optional_dependencies` imports extras, `foreign_errors` maps errors of libraries, `markup`
builds HTML, `tracing` creates spans of OpenTelemetry, `json_memory_size` estimates the memory of parsed JSON.
"""
