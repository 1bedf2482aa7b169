"""A second reader of the format, which shares no code with the first: written from the format's pages alone."""
