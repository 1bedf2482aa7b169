"""One request: parsing, authorization, pagination, and idempotency keys."""
