"""Which of DuckDB's functions a query may call; `parsed_query` asks."""

from __future__ import annotations

#: The functions that may stand in the place of a table.
TABLE_FUNCTIONS = frozenset({"generate_series", "json_each", "json_tree", "range", "repeat", "repeat_row", "unnest"})
#: The functions that may not be called: they tell of the process, or read a query from a text.
REFUSED_FUNCTIONS = frozenset(
    {"current_setting", "getenv", "json_serialize_plan", "parse_duckdb_log_message", "which_secret", "write_log"}
)
