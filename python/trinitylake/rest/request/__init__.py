"""One request as handlers see it: its call, pages of lists, and keys of requests that are sent twice."""
