"""What every layer stands on: names, arguments, settings and texts, each for itself.

`qualified_names` takes names apart, `properties` says which are the lakehouse's own, `arguments` refuses odd values,
`durations` reads "7 days", `log_note` is what a caller tells the log, `secret_values` reads secrets from where they are
said to be; `markup` is for HTML, `tracing` for OpenTelemetry; `parsed_size` and `answers_in_time` are limits for what
others send. Of the package it uses the kinds of errors alone.
"""
