"""`POST /ingest/{namespace}/{table}`: append JSON lines or an Arrow IPC stream, and answer when the rows are durable.

Requests that arrive at about the same time share a commit. The rows of a request are committed together or not at all,
unless the request names a dead-letter table. A request with a producer and a sequence number can be repeated: rows
whose number the table already has are not written again. Each principal has its own producers.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from urllib.parse import quote

import pyarrow as pa
from starlette.datastructures import Headers
from starlette.responses import Response

from trinitylake.base.qualified_names import split
from trinitylake.errors import InvalidArgument, ObjectNotFound
from trinitylake.rest.errors import RestError, bad_request, too_large
from trinitylake.rest.request.body import MAX_VALUES
from trinitylake.rest.request.call import Call, LaterResponse, json_response
from trinitylake.rest.request.idempotency import HEADER as IDEMPOTENCY_KEY
from trinitylake.rest.security.authorization import Name
from trinitylake.rest.transactions.table_writers import Key
from trinitylake.tables.ingestion.text_rows import json_rows

ARROW_TYPE = "application/vnd.apache.arrow.stream"
_JSON_TYPES = ("", "application/json", "application/jsonl", "application/json-lines", "application/x-ndjson")
PRODUCER, SEQUENCE = "Producer", "Sequence"


def write(call: Call) -> LaterResponse:
    """Append the rows in the body.

    Raises `RestError` 400 for headers or a body that cannot be read, and 415 for another content type.
    """
    key = _key(call)
    producer, sequence = _producer(call)
    data = _rows(call)
    writers = call.service.writers
    future = writers.write(key, data, producer, sequence)

    def answer() -> Response:
        try:
            call.commit.version = future.result()
        except ObjectNotFound:
            writers.forget(key)
            raise
        rejected = future.rows_rejected
        return json_response({"version": call.commit.version, "rejected": rejected, "duplicate": future.is_duplicate})

    return LaterResponse(future, answer)


def dead_letter_table(call: Call) -> Iterator[Name]:
    """The dead-letter table, if the request names one; the principal needs the same role on it."""
    if (name := _key(call)[1]) is not None:
        yield (*name[0].split("."), name[1])


def _key(call: Call) -> Key:
    *namespace, name = call.identifier("table")
    if unknown := [name for name in call.query if name != "dead-letter-table"]:
        raise bad_request(f"unknown parameter {unknown[0][:100]!r}; the only parameter is dead-letter-table")
    given = call.query.get("dead-letter-table")
    return (".".join(namespace), name), None if given is None else split(given)


def _producer(call: Call) -> tuple[str | None, int | None]:
    name, number = call.headers.get(PRODUCER), call.headers.get(SEQUENCE)
    if call.headers.get(IDEMPOTENCY_KEY) is not None:
        raise bad_request(
            f"the header {IDEMPOTENCY_KEY} is not supported here, because requests share commits: use the headers "
            f"{PRODUCER} and {SEQUENCE}"
        )
    if (name is None) != (number is None):
        raise bad_request(f"the headers {PRODUCER} and {SEQUENCE} belong together: send both or neither")
    if name is None or number is None:
        return None, None
    if not (number.isascii() and number.isdigit() and len(number) < 20):
        raise bad_request(f"the header {SEQUENCE} must be an integer from 0 to 2**63 - 1, not {number[:100]!r}")
    # Quoted, so that the producers of two principals never have the same name.
    return f"{quote(call.principal.name, safe='')}/{quote(name, safe='')}", int(number)


def content_type(headers: Headers) -> str:
    """The content type of a request without parameters."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def _rows(call: Call) -> object:
    type = content_type(call.headers)
    if type == ARROW_TYPE:
        try:
            # Rows for a dead-letter table become Python objects, as those of JSON are.
            return _arrow_rows(call.body, MAX_VALUES if "dead-letter-table" in call.query else _MAX_ARROW_VALUES)
        except (pa.ArrowException, OSError, struct.error) as error:
            raise bad_request(f"the body is not an Arrow IPC stream: {error}") from error
    if type in _JSON_TYPES:
        if call.body.count(b"\n") > MAX_VALUES:  # the number of values does not limit blank lines
            raise too_large(f"a body has at most {MAX_VALUES:,} lines")
        return json_rows(call.body.split(b"\n"))
    raise RestError(
        415,
        "UnsupportedMediaTypeException",
        f"Content-Type {type[:100]} is not supported: use application/x-ndjson or {ARROW_TYPE}",
    )


def _arrow_rows(body: bytes, max_values: int) -> pa.Table:
    """The rows of an Arrow IPC stream.

    Raises:
        InvalidArgument: for bytes after the stream, and for data that may take much more memory than the body, which
            are compressed buffers and encoded types such as dictionaries.
        RestError: 413 for too many values.
    """
    source = pa.BufferReader(body)
    messages = pa.ipc.MessageReader.open_stream(source)
    while True:
        try:
            message = messages.read_next_message()
        except StopIteration:
            break
        if message.type != "schema" and _is_compressed(message.metadata.to_pybytes()):
            raise InvalidArgument("the Arrow buffers are compressed: send them without compression")
    if left := len(body) - source.tell():
        raise InvalidArgument(f"the body has {left} bytes after the end of its Arrow stream: send one stream")
    reader = pa.ipc.open_stream(body)
    for field in reader.schema:
        if _is_encoded(field.type):
            raise InvalidArgument(f"column {field.name} has the type {field.type}: send plain values")
    batches: list[pa.RecordBatch] = []
    n_values = 0
    for batch in reader:
        n_values += batch.num_rows + sum(map(_count_values, batch.columns))
        if n_values > max_values:
            raise too_large(f"the request exceeds the limit of {max_values:,} values: send fewer rows")
        batch.validate(full=True)
        batches.append(batch)
    return pa.Table.from_batches(batches, reader.schema)


#: Larger than the limit for JSON, because Arrow values are not Python objects.
_MAX_ARROW_VALUES = 16 * MAX_VALUES


def _count_values(values: pa.Array) -> int:
    """The number of values at all levels. Nulls and empty structs take no bytes, so the body does not limit it."""
    is_, kind = pa.types, values.type
    parts: list[pa.Array] = []
    if is_.is_struct(kind):
        parts = [values.field(number) for number in range(kind.num_fields)]
    elif is_.is_map(kind):
        parts = [values.keys, values.items]
    elif is_.is_nested(kind):
        parts = [values.values]
    return len(values) + sum(map(_count_values, parts))


def _is_encoded(kind: pa.DataType) -> bool:
    is_ = pa.types
    plain = not (
        is_.is_dictionary(kind)
        or is_.is_run_end_encoded(kind)
        or is_.is_list_view(kind)
        or is_.is_large_list_view(kind)
        or is_.is_string_view(kind)
        or is_.is_binary_view(kind)
        or is_.is_union(kind)
        or isinstance(kind, pa.BaseExtensionType)
    )
    return not plain or any(_is_encoded(kind.field(number).type) for number in range(kind.num_fields))


def _is_compressed(metadata: bytes) -> bool:
    """Whether the buffers of a record batch are compressed, by the header of its message (Arrow's `Message.fbs`)."""
    message = _table(metadata, 0)
    header = _part(metadata, message, 2)
    if header is None:
        return False
    return _part(metadata, _table(metadata, header), 3) is not None


def _table(buffer: bytes, at: int) -> int:
    """Position of the FlatBuffers table to which the offset at `at` points."""
    return at + int(struct.unpack_from("<I", buffer, at)[0])


def _part(buffer: bytes, table: int, number: int) -> int | None:
    """Position of field `number` of a FlatBuffers table; None if the field is absent."""
    fields = table - struct.unpack_from("<i", buffer, table)[0]
    (size_bytes,) = struct.unpack_from("<H", buffer, fields)
    at = 4 + 2 * number
    offset = int(struct.unpack_from("<H", buffer, fields + at)[0]) if at < size_bytes else 0
    return table + offset if offset else None
