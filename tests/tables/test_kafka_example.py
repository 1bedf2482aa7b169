"""`examples/kafka_ingestion.py` with the mock cluster of Kafka's client: each message is written once, also if
processes are killed.
"""

from __future__ import annotations

import importlib.util
import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import trinitylake as tl
from waiting import PATIENCE_SECONDS

EXAMPLE = Path(__file__).parents[2] / "examples" / "kafka_ingestion.py"
PARTITIONS = 4


class Cluster:
    """A mock cluster with the topic `orders`. The cluster ends with its producer."""

    def __init__(self) -> None:
        from confluent_kafka import Producer

        self._producer = Producer({"test.mock.num.brokers": 1})
        brokers = self._producer.list_topics(timeout=PATIENCE_SECONDS).brokers.values()
        self.servers = ",".join(f"{one.host}:{one.port}" for one in brokers)

    def send(self, *values: bytes) -> None:
        for number, value in enumerate(values):
            self._producer.produce("orders", value, partition=number % PARTITIONS)
        assert self._producer.flush(PATIENCE_SECONDS) == 0


@pytest.fixture
def lake(tmp_path: Path) -> tl.Lakehouse:
    lake = tl.create(str(tmp_path / "lake"), durability="none")
    lake.create_namespace("raw")
    lake.create_table("raw.orders", {"id": "bigint", "name": "varchar"})
    return lake


def ids(lake: tl.Lakehouse) -> list[int]:
    return sorted(lake.table("raw.orders").scan().to_arrow()["id"].to_pylist())


def example() -> Any:
    spec = importlib.util.spec_from_file_location("kafka_ingestion", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_messages_are_rows_and_what_is_no_row_is_in_the_dead_letter_table(lake: tl.Lakehouse) -> None:
    cluster = Cluster()
    cluster.send(b'{"id": 1}', b"no json", b'{"id": "x"}', b'{"id": 2, "name": "a"}')
    config, deadline = {"bootstrap.servers": cluster.servers}, time.monotonic() + PATIENCE_SECONDS
    module = example()
    for count in (2, 3):  # the second consumer continues after the offsets in the table
        module.ingest(
            lake.table("raw.orders"),
            ["orders"],
            config,
            lambda count=count: lake.table("raw.orders").count() < count and time.monotonic() < deadline,
            max_delay="50 ms",
        )
        cluster.send(b'{"id": 3}')
    assert ids(lake) == [1, 2, 3]
    rejected = lake.table("raw.rejected_messages").scan().to_arrow().to_pylist()
    assert sorted(one["row"] for one in rejected) == ['{"id": "x"}', '{"message": "no json"}']
    assert {one["producer"] for one in rejected} == {"kafka.orders.1", "kafka.orders.2"}


def test_killed_and_rebalanced_consumers_write_each_message_once(lake: tl.Lakehouse) -> None:
    cluster, choose, count = Cluster(), random.Random(11), 0
    # A killed member belongs to its group until its session times out.
    program = f"""
import sys
import trinitylake as tl
sys.path.insert(0, {str(EXAMPLE.parent)!r})
from kafka_ingestion import ingest
config = {{"bootstrap.servers": {cluster.servers!r}, "session.timeout.ms": "2000", "heartbeat.interval.ms": "300"}}
ingest(tl.open({lake.uri!r}).table("raw.orders"), ["orders"], config, max_delay="50 ms")
"""
    command = [sys.executable, "-c", program]
    consumers = [subprocess.Popen(command) for _ in range(2)]
    deadline = time.monotonic() + PATIENCE_SECONDS
    try:
        for _ in range(2):
            size = choose.randint(50, 200)
            cluster.send(*(json.dumps({"id": id}).encode() for id in range(count, count + size)))
            count += size
            time.sleep(1 + choose.random() * 5)
            victim = choose.randrange(2)
            consumers[victim].send_signal(signal.SIGKILL)
            consumers[victim].wait()
            consumers[victim] = subprocess.Popen(command)
        while lake.table("raw.orders").count() < count and time.monotonic() < deadline:
            time.sleep(0.2)
            for number, consumer in enumerate(consumers):
                if consumer.poll() is not None:  # the other consumer fenced this one, so it is started again
                    consumers[number] = subprocess.Popen(command)
        time.sleep(2)  # duplicate rows would arrive now
    finally:
        for consumer in consumers:
            consumer.kill()
            consumer.wait()
    assert ids(lake) == list(range(count))
