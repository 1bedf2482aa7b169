"""Kafka topics into a table, each message exactly once.

    python examples/kafka_ingestion.py s3://bucket/lake raw.events localhost:9092 orders payments

Each partition of a topic is a producer of the table, and the offset of a message is its sequence number. The table has
the offsets in the same commit as the rows, so Kafka's own committed offsets are not used: a consumer that gets a
partition continues after the last offset in the table, wherever another consumer stopped. Start as many as you like.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

import trinitylake as tl
from trinitylake import Table

GROUP = "trinitylake"


def producer_of(topic: str, partition: int) -> str:
    return f"kafka.{topic}.{partition}"


def row_of(message: Message) -> dict[str, object]:
    """The row of a message. If it is not a JSON object, the row has a column that the table lacks, and is rejected."""
    value = message.value() or b""
    try:
        row = json.loads(value)
    except ValueError:
        row = None
    return row if isinstance(row, dict) else {"message": value.decode(errors="replace")}


def ingest(
    table: Table,
    topics: list[str],
    config: Mapping[str, str],
    is_wanted: Callable[[], bool] = lambda: True,
    max_delay: str = "1 second",
) -> None:
    """Consume topics until `is_wanted` returns False. Raises what the writer and Kafka raise; start it again then."""
    namespace = table.name.rpartition(".")[0]
    settings = {"group.id": GROUP, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    consumer = Consumer({**settings, **config})
    with table.writer(max_delay=max_delay, dead_letter_table=f"{namespace}.rejected_messages") as writer:

        def assigned(consumer: Consumer, partitions: list[TopicPartition]) -> None:
            for partition in partitions:
                last = writer.last_sequence(producer_of(partition.topic, partition.partition))
                if last is not None:
                    partition.offset = last + 1
            consumer.assign(partitions)

        def revoked(consumer: Consumer, partitions: list[TopicPartition]) -> None:
            with suppress(tl.ProducerFenced):  # the next owner was faster, and reads these messages again
                writer.flush()

        consumer.subscribe(topics, on_assign=assigned, on_revoke=revoked, on_lost=revoked)
        try:
            while is_wanted():
                for message in consumer.consume(num_messages=1000, timeout=0.1):
                    if (error := message.error()) is not None:
                        raise KafkaException(error)
                    topic, partition, offset = message.topic(), message.partition(), message.offset()
                    assert topic is not None
                    assert partition is not None
                    writer.write([row_of(message)], producer=producer_of(topic, partition), sequence=offset)
        finally:
            consumer.close()


if __name__ == "__main__":
    root, name, servers, *names = sys.argv[1:]
    ingest(tl.open(root).table(name), names, {"bootstrap.servers": servers})
