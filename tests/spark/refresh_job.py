"""A Spark application with the refresh functions of TPC-H: it inserts new orders with their items and deletes old ones.

`test_refresh.py` runs it in a process of its own, and kills it. When it is started again, it continues after the last
committed refresh. Its arguments are the root of the lakehouse, the master and the total number of refreshes. It prints
when a refresh begins and when it is committed.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

import trinitylake as tl
from trinitylake.spark import connect, transaction
from trinitylake.spark.runtime import EXTENSIONS, package, use_this_python

ROOT, MASTER, REFRESHES = sys.argv[1], sys.argv[2], int(sys.argv[3])
#: Number of orders in a refresh, and number of refreshes whose orders remain.
ORDERS, KEPT = 60, 3


def main() -> None:
    use_this_python()
    settings = {
        "spark.master": MASTER,
        "spark.driver.memory": "1g",
        "spark.executor.memory": "700m",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.extensions": EXTENSIONS,
        "spark.jars.packages": package(),
        "spark.python.daemon.module": "trinitylake.spark.worker_daemon",
        "spark.task.maxFailures": "20",
        "spark.deploy.maxExecutorRetries": "-1",
    }
    builder = SparkSession.builder.appName("refresh")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    connect(ROOT, "lake", spark=spark)
    for number in range(REFRESHES):
        refresh(spark, tl.open(ROOT), number)
    spark.stop()


def refresh(spark: SparkSession, lake: tl.Lakehouse, number: int) -> None:
    id = f"refresh-{number}"
    say("begun", number)
    if lake.transactions.outcome(id).status != "committed":
        with transaction(spark, catalog="lake", id=id) as tx:
            first = number * ORDERS
            orders = f"SELECT id AS key, {number} AS refresh FROM range({first}, {first + ORDERS}, 1, 4)"
            items = f"SELECT *, explode(sequence(1, 1 + key % 4)) AS line FROM ({orders})"
            tx.sql(
                "INSERT INTO tpch.orders SELECT key, refresh, sum(key * 10 + line) AS price "
                f"FROM ({items}) GROUP BY key, refresh"
            )
            tx.sql(f"INSERT INTO tpch.lineitem SELECT key, line, key * 10 + line AS price FROM ({items})")
            if number >= KEPT:
                tx.sql(f"DELETE FROM tpch.lineitem WHERE key < {(number - KEPT + 1) * ORDERS}")
                tx.sql(f"DELETE FROM tpch.orders WHERE refresh <= {number - KEPT}")
    say("committed", number)
    # The same write again by the data source, in Python workers: a write with an id is done once.
    keys = spark.range(number * ORDERS, (number + 1) * ORDERS, 1, 4).withColumnRenamed("id", "key")
    writer = keys.write.format("trinitylake").option("root", ROOT).option("id", f"keys-{number}")
    writer.mode("append").save("tpch.keys")
    say("keys", number)


def say(what: str, number: int) -> None:
    sys.stdout.write(f"{what} {number}\n")
    sys.stdout.flush()


main()
