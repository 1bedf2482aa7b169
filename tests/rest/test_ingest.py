"""`POST /ingest/{namespace}/{table}`: rows from any language, acknowledged when they are durable."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import trinitylake as tl
from rest.client import Answer, Client, running
from rest.conftest import RITA, ROOT, WALT
from trinitylake.rest import RestServer
from trinitylake.rest.handlers.ingestion import ARROW_TYPE
from trinitylake.tables.ingestion.table_writer import TableWriter
from waiting import PATIENCE_SECONDS, in_threads, wait_until

PATH = "/ingest/shop/events"
COLUMNS = {"id": "bigint", "name": "varchar", "price": "decimal(20, 10)"}


@pytest.fixture
def shop(lake: tl.Lakehouse) -> tl.Lakehouse:
    """An empty table, and a table in another namespace."""
    for namespace in ("shop", "payroll"):
        lake.create_namespace(namespace)
        lake.create_table(f"{namespace}.events", COLUMNS)
    return lake


def ids(lake: tl.Lakehouse) -> list[int]:
    return sorted(lake.table("shop.events").scan().to_arrow()["id"].to_pylist())


def lines(*rows: Any) -> bytes:
    return b"\n".join(json.dumps(row).encode() for row in rows)


def arrow(table: pa.Table, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def post(client: Client, body: bytes, path: str = PATH, token: str | None = None, **headers: str) -> Answer:
    return client(
        "POST", path, body, headers={name.replace("_", "-"): text for name, text in headers.items()}, token=token
    )


def test_rows_of_json_lines_and_arrow_are_durable_when_acknowledged(http_client: Client, shop: tl.Lakehouse) -> None:
    answer = post(http_client, b'{"id": 1, "price": 9999999999.0123456789}\n\n{"id": "2", "name": "\xc3\xa9"}\n')
    assert answer.body == {"version": shop.version, "rejected": 0, "duplicate": False}
    table = pa.table({"id": [3, 4], "name": pa.array(["x", None])})
    answer = post(http_client, arrow(table), content_type=ARROW_TYPE)
    assert (answer.code, answer.body["version"]) == (200, shop.version)
    rows = shop.table("shop.events").scan().to_arrow().sort_by("id").to_pylist()
    assert [row["id"] for row in rows] == [1, 2, 3, 4]
    assert str(rows[0]["price"]) == "9999999999.0123456789"
    assert rows[1]["name"] == "é"
    assert post(http_client, b"").code == 200


def test_requests_of_many_clients_share_commits(http_client: Client, shop: tl.Lakehouse) -> None:
    """Many requests share a commit. Their number is not limited by the 64 threads of the server, because no thread
    waits for the commit."""
    before, codes = shop.version, []

    def send(first: int) -> None:
        codes.extend(post(http_client, lines({"id": id})).code for id in range(first, first + 3))

    in_threads(send, range(0, 300, 3))
    assert codes == [200] * 300
    assert ids(shop) == list(range(300))
    assert shop.version - before < 100


def test_sequence_number_is_written_once_also_by_another_server(
    server: RestServer, http_client: Client, shop: tl.Lakehouse
) -> None:
    first = post(http_client, lines({"id": 1}), producer="sensor", sequence="5")
    assert first.body["duplicate"] is False
    with running(shop, token=server.token) as other:
        clients, answers = [http_client, Client(other)] * 6, []

        def send(client: Client) -> None:
            answers.append(post(client, lines({"id": 2}), producer="sensor", sequence="6"))

        in_threads(send, clients)
    assert sorted(answer.body["duplicate"] for answer in answers) == [False] + [True] * 11
    assert post(http_client, lines({"id": 1}), producer="sensor", sequence="5").body["duplicate"] is True
    assert ids(shop) == [1, 2]
    shop.rollback(first.body["version"])
    assert post(http_client, lines({"id": 2}), producer="sensor", sequence="6").body["duplicate"] is False
    assert ids(shop) == [1, 2]


def test_row_that_does_not_fit_fails_its_request_or_goes_to_the_dead_letter_table(
    http_client: Client, shop: tl.Lakehouse
) -> None:
    for body in (b'{"id": 1}\n{"id": "x"}', b'{"id": 1}\nno json', b'{"id": 1, "nme": 2}', b"[1]", b"\xff"):
        answer = post(http_client, body)
        assert (answer.code, answer.error) == (400, "BadRequestException"), body
    assert ids(shop) == []
    answer = post(http_client, b'{"id": 1}\n{"id": "x"}\nno json', path=f"{PATH}?dead-letter-table=shop.dead")
    assert (answer.code, answer.body["rejected"]) == (200, 2)
    assert ids(shop) == [1]
    assert sorted(shop.table("shop.dead").scan().to_arrow()["row"].to_pylist()) == ["no json", '{"id": "x"}']


def test_invalid_requests_are_refused(http_client: Client, shop: tl.Lakehouse) -> None:
    row = lines({"id": 1})
    assert post(http_client, row, path="/ingest/shop/none").code == 404
    assert post(http_client, row, producer="p").code == 400
    assert post(http_client, row, sequence="1").code == 400
    for number in ("-1", "x", "1.0", "٣".encode().decode("latin-1"), "9" * 20, str(1 << 63)):
        assert post(http_client, row, producer="p", sequence=number).code == 400, number
    assert post(http_client, row, content_type="text/csv").code == 415
    assert "Producer and Sequence" in post(http_client, row, idempotency_key="x").body["error"]["message"]
    large = post(http_client, b'{"id": 1}\n' * 2_000_000)
    assert large.code == 413
    assert post(http_client, b'{"id":[' + b"1," * 300_000 + b"1]}").code == 413
    assert post(http_client, b"\n" * 300_000).code == 413
    assert http_client("GET", PATH).code == 405
    shop.drop_table("shop.events")
    assert post(http_client, row).code == 404


def test_arrow_streams_that_take_more_memory_than_bytes_or_are_damaged_are_refused(
    http_client: Client, shop: tl.Lakehouse
) -> None:
    for body, said in [
        (arrow(pa.table({"id": [1] * 9999}), compression="zstd"), "without compression"),
        (arrow(pa.table({"name": pa.array(["x" * 99] * 9).dictionary_encode()})), "plain values"),
        (arrow(pa.table({"name": pa.array(["x"], pa.string_view())})), "plain values"),
        (arrow(pa.table({"id": pa.array([[1]], pa.list_(pa.int64()))}))[:-40], "Arrow IPC"),
        (b"", "Arrow IPC"),
        (b"\xff\xff\xff\xff\x10\x00\x00\x00" + b"\xff" * 16, "Arrow IPC"),
    ]:
        answer = post(http_client, body, content_type=ARROW_TYPE)
        assert (answer.code, said in answer.body["error"]["message"]) == (400, True), answer
        assert shop.table("shop.events").count() == 0


@pytest.mark.parametrize(
    "rest", [arrow(pa.table({"id": [3]})), b"garbage", b'{"id": 3}\n', b"\x00" * 8, b"\xff\xff\xff\xff"]
)
def test_bytes_after_an_arrow_stream_are_refused(http_client: Client, shop: tl.Lakehouse, rest: bytes) -> None:
    """A body with bytes after its Arrow stream is refused. Otherwise two streams in one body would be acknowledged, and
    only the rows of the first one stored."""
    answer = post(
        http_client, arrow(pa.table({"id": [1, 2]})) + rest, content_type=ARROW_TYPE, producer="p", sequence="1"
    )
    assert (answer.code, "after the end of its Arrow stream" in answer.body["error"]["message"]) == (400, True), answer
    assert shop.table("shop.events").count() == 0
    again = post(http_client, arrow(pa.table({"id": [1, 2]})), content_type=ARROW_TYPE, producer="p", sequence="1")
    assert (again.code, again.body["duplicate"], shop.table("shop.events").count()) == (200, False, 2)


_LISTED_NULLS = pa.ListArray.from_arrays(pa.array([0, 5_000_000], pa.int32()), pa.nulls(5_000_000))


@pytest.mark.parametrize(
    ("column", "dead_letters"),
    [
        (pa.nulls(5_000_000), ""),
        (_LISTED_NULLS, ""),
        (pa.StructArray.from_arrays([_LISTED_NULLS], ["a"]), ""),
        (pa.FixedSizeListArray.from_arrays(pa.nulls(5_000_000), 5_000_000), ""),
        (pa.nulls(300_000), "?dead-letter-table=shop.dead"),
    ],
)
def test_stream_of_many_nulls_is_refused(
    http_client: Client, shop: tl.Lakehouse, column: pa.Array, dead_letters: str
) -> None:
    """A body of 336 bytes, one list of many nulls, stopped the server for minutes and filled its memory."""
    body = arrow(pa.table({"id": column}))
    assert len(body) < 2000
    answer = http_client("POST", PATH + dead_letters, body, headers={"Content-Type": ARROW_TYPE})
    assert answer.code == 413


def test_misspelled_parameter_is_refused(http_client: Client, shop: tl.Lakehouse) -> None:
    """An unknown parameter is an error. If `dead_letter-table` were ignored, one bad row would refuse all rows of its
    request."""
    answer = post(http_client, lines({"id": 1}), path=f"{PATH}?dead_letter-table=shop.dead")
    assert (answer.code, "'dead_letter-table'" in answer.body["error"]["message"]) == (400, True)
    assert ids(shop) == []


def test_damaged_arrow_streams_never_end_the_server(http_client: Client, shop: tl.Lakehouse) -> None:
    body = arrow(pa.table({"id": [1, 2], "name": ["ab", "c"]}))
    codes = set()
    for at in range(0, len(body), 3):
        damaged = body[:at] + bytes([body[at] ^ 0xFF]) + body[at + 1 :]
        codes.add(post(http_client, damaged, content_type=ARROW_TYPE).code)
    assert codes == {200, 400} or codes == {200, 400, 413}


def test_writers_of_the_table_and_of_the_dead_letter_table_may_ingest(
    lake: tl.Lakehouse, shop: tl.Lakehouse, tokens: Path
) -> None:
    tokens.chmod(0o600)
    row = lines({"id": 1})
    with running(lake, token_file=tokens) as server:
        client = Client(server)
        assert post(client, row, token=RITA).code == 403
        assert post(client, row, token=WALT).code == 200
        assert post(client, row, path="/ingest/payroll/events", token=WALT).code in (403, 404)
        beside = f"{PATH}?dead-letter-table=payroll.dead"
        assert post(client, row, path=beside, token=WALT).code in (403, 404)
        # The first rejected row created the namespace of the dead-letter table, which only an admin may do.
        assert post(client, b"no json", path=f"{PATH}?dead-letter-table=new.dead", token=ROOT).code == 404
        assert "new" not in lake.namespaces()
        assert post(client, row, path=beside, token=ROOT).code == 200
        for token in (WALT, ROOT):
            answer = post(client, lines({"id": 7}), token=token, producer="p", sequence="1")
            assert answer.body["duplicate"] is False, "producers of two principals are different"
    assert ids(shop) == [1, 1, 7, 7]


def test_producers_of_principals_with_dots_are_different(lake: tl.Lakehouse, shop: tl.Lakehouse, tokens: Path) -> None:
    """Producer `a.b` of `walt` and producer `b` of `walt.a` have different sequence numbers. Otherwise rows of one
    would count as duplicates of the other."""
    tokens.write_text(f"{WALT} walt writer:shop.*\n{ROOT} walt.a writer:shop.*\n")
    with running(lake, token_file=tokens) as server:
        client = Client(server)
        for token, producer in ((WALT, "a.b"), (ROOT, "b")):
            answer = post(client, lines({"id": 1}), token=token, producer=producer, sequence="1")
            assert (answer.code, answer.body["duplicate"]) == (200, False)


def test_idle_writers_are_closed_and_a_stopping_server_commits_what_it_has(shop: tl.Lakehouse) -> None:
    with running(shop) as server:
        client = Client(server)
        assert post(client, lines({"id": 1})).code == 200
        writers = server._app.service.writers
        assert len(writers._writers) == 1
        writers.close_idle(0.0)
        assert not writers._writers
        assert post(client, lines({"id": 2})).code == 200
        answers: list[int] = []
        thread = threading.Thread(target=lambda: answers.append(post(client, lines({"id": 3})).code))
        thread.start()
        wait_until(lambda: any(shared.writer._buffer for shared in writers._writers.values()) or bool(answers))
    thread.join()
    assert answers == [200]
    assert ids(shop) == [1, 2, 3]


@pytest.mark.parametrize("is_dropped", [False, True])
def test_a_request_that_waits_for_the_buffer_keeps_its_writer(
    shop: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch, is_dropped: bool
) -> None:
    """Valid rows were answered with 400, `the writer is closed`, if their request waited for a full buffer longer than
    writers may be idle. A client does not send rows again after that answer."""
    entered, leave = threading.Event(), threading.Event()
    written, answers = TableWriter.write, list[int]()

    def waiting(writer: TableWriter, *given: Any, **options: Any) -> Any:
        entered.set()
        leave.wait(PATIENCE_SECONDS)
        return written(writer, *given, **options)

    monkeypatch.setattr(TableWriter, "write", waiting)
    with running(shop) as server:
        writers = server._app.service.writers
        thread = threading.Thread(target=lambda: answers.append(post(Client(server), lines({"id": 1})).code))
        thread.start()
        entered.wait(PATIENCE_SECONDS)
        if is_dropped:
            writers.forget((("shop", "events"), None))
        else:
            writers.close_idle(0.0)
        leave.set()
        thread.join()
    assert (answers, ids(shop)) == ([200], [1])


def test_an_error_that_no_client_waits_for_does_not_end_the_check_for_idle_writers(shop: tl.Lakehouse) -> None:
    """The error was raised again when the writer was closed, and ended the server's task that ends what is idle."""
    with running(shop) as server:
        writers = server._app.service.writers
        writers.write((("shop", "events"), None), [{"id": "no number"}], None, None)
        writers.close_idle(0.0)
        assert not writers._writers
