"""OpenTelemetry spans: created if the application configured a provider; otherwise OpenTelemetry is not imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import trinitylake as tl
from documentation import run_examples
from rest.client import Client, running
from trinitylake.base import tracing

ROOT = Path(__file__).parents[2]
ROWS = {"id": [1, 2, 3]}


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """The exported spans. A process can set its provider only once, so the test replaces the lookup of the provider."""
    spans = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))

    def put(provider: TracerProvider) -> None:
        monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)

    put(provider)
    monkeypatch.setattr(trace, "set_tracer_provider", put)
    return spans


def test_a_provider_that_is_set_later_is_found_and_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A provider that is set later is used, and its tracer is created only once, because this takes several
    microseconds."""
    assert tracing._tracer() is None
    for provider in TracerProvider(), TracerProvider():
        made: list[str] = []
        make = provider.get_tracer
        monkeypatch.setattr(
            provider, "get_tracer", lambda name, *rest, make=make, made=made: made.append(name) or make(name, *rest)
        )
        monkeypatch.setattr(trace, "get_tracer_provider", lambda provider=provider: provider)
        tracer = tracing._tracer()
        assert tracer is not None
        assert tracer is tracing._tracer()
        assert made == ["trinitylake"]


def test_a_statement_that_needs_no_table_is_a_transaction_with_a_commit(
    lake: tl.Lakehouse, exported: InMemorySpanExporter
) -> None:
    lake.create_namespace("first")
    lake.create_namespace("second")  # on a version that was the latest a moment ago
    assert [span.name for span in exported.get_finished_spans()] == ["commit", "transaction"] * 2


@pytest.fixture
def shop(lake: tl.Lakehouse) -> tl.Lakehouse:
    lake.create_namespace("shop")
    lake.create_table("shop.orders", {"id": "bigint"})
    return lake


def named(spans: InMemorySpanExporter, name: str) -> ReadableSpan:
    [span] = [span for span in spans.get_finished_spans() if span.name == name]
    return span


def attribute(span: ReadableSpan, name: str) -> object:
    return (span.attributes or {}).get(name)


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.span_id


def test_opentelemetry_is_not_imported_without_a_provider(tmp_path: Path) -> None:
    """OpenTelemetry is not imported without a provider, because its import takes time and few programs use it."""
    code = (
        "import sys, trinitylake as tl\n"
        "lake = tl.create(sys.argv[1], durability='none')\n"
        "with lake.transaction() as txn:\n"
        "    txn.create_namespace('a')\n"
        "    txn.create_table('a.t', {'id': 'bigint'}).append({'id': [1]})\n"
        "    txn.table('a.t').scan().to_arrow()\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "lake")], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_tracing_example_of_the_docs_runs(
    exported: InMemorySpanExporter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run_examples(ROOT / "docs" / "integrations" / "opentelemetry.md")


def test_a_statement_outside_of_a_transaction_is_the_parent_span(
    shop: tl.Lakehouse, exported: InMemorySpanExporter
) -> None:
    shop.table("shop.orders").append(ROWS)
    statement, transaction = named(exported, "append shop.orders"), named(exported, "transaction")
    assert parent_of(transaction) == id_of(statement)
    assert parent_of(named(exported, "commit")) == id_of(transaction)
    assert attribute(transaction, "trinitylake.transaction.status") == "committed"
    assert attribute(transaction, "trinitylake.version") == shop.version


def test_commit_span_is_a_child_of_the_transaction_span(shop: tl.Lakehouse, exported: InMemorySpanExporter) -> None:
    first, second = shop.begin(id="first"), shop.begin(id="second")
    for one in (first, second):
        one.table("shop.orders").append(ROWS)
    first.commit()
    second.commit()
    transactions = {attribute(span, "trinitylake.transaction.id"): span for span in exported.get_finished_spans()}
    commits = [span for span in exported.get_finished_spans() if span.name == "commit"]
    assert [parent_of(commit) for commit in commits] == [id_of(transactions["first"]), id_of(transactions["second"])]
    assert [attribute(commit, "trinitylake.commit.redone_tables") for commit in commits] == [0, 1]


def test_span_of_a_conflict_has_its_kind(shop: tl.Lakehouse, exported: InMemorySpanExporter) -> None:
    first, second = shop.begin(), shop.begin()
    first.alter_namespace("shop", {"owner": "ana"})
    second.alter_namespace("shop", {"owner": "ben"})
    first.commit()
    exported.clear()
    with pytest.raises(tl.CommitConflict):
        second.commit()
    for name in ("commit", "transaction"):
        span = named(exported, name)
        assert attribute(span, "error.type") == "commit_conflict"
        assert not span.status.is_ok
    assert attribute(named(exported, "transaction"), "trinitylake.transaction.status") == "failed"


def test_spans_of_rolled_back_transactions_end(shop: tl.Lakehouse, exported: InMemorySpanExporter) -> None:
    def fail() -> None:
        with shop.transaction() as txn:
            txn.table("shop.orders").append(ROWS)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    span = named(exported, "transaction")
    assert attribute(span, "trinitylake.transaction.status") == "rolled_back"
    assert trace.get_current_span() is trace.INVALID_SPAN, "the transaction is not the current span any more"


def test_span_of_a_stream_ends_with_its_last_row(shop: tl.Lakehouse, exported: InMemorySpanExporter) -> None:
    shop.table("shop.orders").append(ROWS)
    reader = shop.table("shop.orders").scan().to_arrow_batch_reader()
    assert "scan shop.orders" not in [span.name for span in exported.get_finished_spans()]
    assert reader.read_all().num_rows == 3
    assert attribute(named(exported, "scan shop.orders"), "db.response.returned_rows") == 3


def test_spans_have_no_row_filter_message_or_option(shop: tl.Lakehouse, exported: InMemorySpanExporter) -> None:
    """Spans contain no row, filter, message or option, because they go to a service that others can read."""
    shop.table("shop.orders").append({"id": [424242]})
    with shop.transaction(message="canary-message", author="canary-author", properties={"canary": "canary"}) as txn:
        txn.table("shop.orders").delete("id = 424242")
    shop.table("shop.orders").scan(filter="id = 424242").to_arrow()
    everything = " ".join(span.to_json() for span in exported.get_finished_spans())
    assert "canary" not in everything
    assert "424242" not in everything


def test_operations_of_a_request_are_child_spans(shop: tl.Lakehouse, exported: InMemorySpanExporter) -> None:
    with running(shop) as server:
        status = Client(server)("POST", "/v1/namespaces", {"namespace": ["more"], "properties": {}})
        assert status
    request, transaction = named(exported, "POST /v1/namespaces"), named(exported, "transaction")
    assert parent_of(transaction) == id_of(request)


def test_async_commit_has_a_span(shop: tl.Lakehouse, exported: InMemorySpanExporter) -> None:
    import asyncio

    async def commit() -> int:
        txn = shop.begin()
        txn.create_namespace("awaited")
        return await txn.aio.commit()

    version = asyncio.run(commit())
    assert attribute(named(exported, "commit"), "trinitylake.version") == version
    assert parent_of(named(exported, "commit")) == id_of(named(exported, "transaction"))
