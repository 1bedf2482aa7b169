"""Which state of the lakehouse a request is about: the latest version, one of the past, or an open transaction."""
