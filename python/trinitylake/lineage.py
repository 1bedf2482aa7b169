"""OpenLineage events with the datasets that a transaction read and wrote. Needs the extra `lineage`.

    from openlineage.client import OpenLineageClient
    from trinitylake.lineage import recorded

    with recorded(lake, lake.transaction(message="nightly"), OpenLineageClient(), job="nightly") as txn:
        txn.table("shop.totals").overwrite(totals_of(txn.table("shop.orders").scan()))

The outputs are the tables and views that the transaction changed according to the log, the inputs are the tables that
it read. The caller need not list datasets, and no SQL is parsed.
"""

from __future__ import annotations

import traceback
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

import trinitylake
from trinitylake.base.optional_dependencies import optional_dependency
from trinitylake.base.qualified_names import Identifier
from trinitylake.errors import InvalidName
from trinitylake.iceberg_storage.snapshot_counts import count_in, summary_of

with optional_dependency("trinitylake.lineage"):
    import attr
    from openlineage.client import OpenLineageClient
    from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
    from openlineage.client.facet_v2 import (
        DatasetFacet,
        RunFacet,
        dataset_version_dataset,
        datasource_dataset,
        error_message_run,
        job_type_job,
        lifecycle_state_change_dataset,
        output_statistics_output_dataset,
        processing_engine_run,
        schema_dataset,
        symlinks_dataset,
    )

if TYPE_CHECKING:
    from openlineage.client.facet_v2 import parent_run

    from trinitylake.lakehouse import Lakehouse
    from trinitylake.lakehouse.reader import Reader
    from trinitylake.lakehouse.transaction import Transaction

AnyDataset = TypeVar("AnyDataset", InputDataset, OutputDataset)
Change = lifecycle_state_change_dataset.LifecycleStateChange

#: A URI, as OpenLineage requires.
PRODUCER = f"urn:trinitylake:{trinitylake.__version__}"


@attr.define
class TransactionRunFacet(RunFacet):
    """The transaction of a run. `version` is None before the commit."""

    id: str
    isolation: str
    baseVersion: int
    version: int | None


@contextmanager
def recorded(
    lake: Lakehouse,
    transaction: Transaction,
    client: OpenLineageClient,
    *,
    job: str,
    namespace: str = "trinitylake",
    parent: parent_run.ParentRunFacet | None = None,
) -> Iterator[Transaction]:
    """Run a transaction in a block, commit it at the end, and send the events START and COMPLETE or FAIL.

    The id of the run is derived from the root of the lakehouse and the id of the transaction, so a retried task with
    the same id reports the same run.

    Args:
        lake: the lakehouse.
        transaction: an open transaction, from `lake.transaction(...)`, `begin` or `resume`.
        client: the client that sends the events.
        job: the name of the job.
        namespace: the namespace of the job.
        parent: the parent run, such as the run of an orchestrator's task.

        Raises the error of the block or the commit, after sending FAIL. If an event cannot be sent, its error is
        raised: for START before the block runs, for COMPLETE after the commit.
    """
    facet = job_type_job.JobTypeJobFacet("BATCH", "TRINITYLAKE", "TRANSACTION")
    run = _Run(lake, transaction, client, Job(namespace, job, {"jobType": facet}), parent)
    run.emit(RunState.START)
    try:
        with transaction:
            yield transaction
    except BaseException as error:
        run.emit(RunState.FAIL, error)
        raise
    run.emit(RunState.COMPLETE)


class _Run:
    def __init__(
        self,
        lake: Lakehouse,
        transaction: Transaction,
        client: OpenLineageClient,
        job: Job,
        parent: parent_run.ParentRunFacet | None,
    ) -> None:
        self._lake = lake
        self._transaction = transaction
        self._client = client
        self._job = job
        self._parent = parent
        self._root = lake.uri.rstrip("/")
        self._id = str(uuid.uuid5(uuid.NAMESPACE_URL, f"{self._root}#{transaction.id}"))

    def emit(self, state: RunState, error: BaseException | None = None) -> None:
        """Send the event for a state of the run."""
        self._client.emit(
            RunEvent(
                eventType=state,
                eventTime=datetime.now(UTC).isoformat(),
                run=Run(self._id, self._facets(error)),
                job=self._job,
                inputs=[] if state is RunState.START else list(self._inputs()),
                outputs=list(self._outputs()) if state is RunState.COMPLETE else [],
                producer=PRODUCER,
            )
        )

    def _facets(self, error: BaseException | None) -> dict[str, RunFacet]:
        one = self._transaction
        facets: dict[str, RunFacet] = {
            "processing_engine": processing_engine_run.ProcessingEngineRunFacet(trinitylake.__version__, "TrinityLake"),
            "trinitylake_transaction": TransactionRunFacet(one.id, one.isolation, one.base_version, one.version),
        }
        if self._parent is not None:
            facets["parent"] = self._parent
        if error is not None:
            stack = "".join(traceback.format_exception(error))
            facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(str(error), "PYTHON", stack)
        return facets

    def _inputs(self) -> Iterator[InputDataset]:
        base = self._lake.at(version=self._transaction.base_version)
        for name in self._transaction.tables_read:
            if _found(base, name)[1] == "table":  # a table that the transaction created is not an input
                yield self._dataset(InputDataset, name, base, base.version)

    def _outputs(self) -> Iterator[OutputDataset]:
        version = self._transaction.version
        assert version is not None
        if version == 0:
            return
        before, after = self._lake.at(version=version - 1), self._lake.at(version=version)
        for entry in self._lake.changes(version - 1, version):
            if entry.transaction.id != self._transaction.id:
                continue
            for sign, change in entry.diff:
                if change.kind == "namespace":
                    continue
                dataset = self._dataset(OutputDataset, change.name, before if sign == "-" else after, version)
                if sign != "~":
                    happened = Change.CREATE if sign == "+" else Change.DROP
                    facet = lifecycle_state_change_dataset.LifecycleStateChangeDatasetFacet(happened)
                    assert dataset.facets is not None
                    dataset.facets["lifecycleStateChange"] = facet
                if sign != "-" and change.kind == "table":
                    dataset.outputFacets = {"outputStatistics": _written(change.name, before, after)}
                yield dataset

    def _dataset(self, kind: type[AnyDataset], name: str, reader: Reader, version: int) -> AnyDataset:
        """A table or view as a dataset, named by root and full name, with a symlink to the folder of a table."""
        facets: dict[str, DatasetFacet] = {
            "dataSource": datasource_dataset.DatasourceDatasetFacet(self._lake.name or None, self._root),
            "version": dataset_version_dataset.DatasetVersionDatasetFacet(str(version)),
        }
        identifier, found = _found(reader, name)
        if found == "table":
            table = reader.table(identifier)
            fields = [
                schema_dataset.SchemaDatasetFacetFields(column.name, str(column.type), ordinal_position=position)
                for position, column in enumerate(table.schema.columns, start=1)
            ]
            facets["schema"] = schema_dataset.SchemaDatasetFacet(fields)
            facets["symlinks"] = symlinks_dataset.SymlinksDatasetFacet([_place(table.location)])
        return kind(self._root, name, facets=facets)


def _found(reader: Reader, name: str) -> tuple[Identifier, str | None]:
    """The object with a full name, and its kind. Names may contain dots, so every split of the full name is tried."""
    levels = name.split(".")
    for own in range(1, len(levels)):
        identifier = ".".join(levels[:-own]), ".".join(levels[-own:])
        with suppress(InvalidName):
            if (kind := reader._kind(identifier)) is not None:
                return identifier, kind
    return name, None


def _place(location: str) -> symlinks_dataset.Identifier:
    """A folder in OpenLineage's form: the bucket and the path in the bucket, or `file` and the path on a local disk."""
    scheme, _, path = location.partition("://")
    if scheme == "file":
        return symlinks_dataset.Identifier("file", path, "LOCATION")
    authority, _, below = path.partition("/")
    return symlinks_dataset.Identifier(f"{scheme}://{authority}", below, "LOCATION")


def _written(
    name: str, before: Reader, after: Reader
) -> output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet:
    """The rows, bytes and data files that a version added to a table."""
    then, kind = _found(before, name)
    known = {snapshot.snapshot_id for snapshot in before.table(then).snapshots()} if kind == "table" else ()
    now = after.table(_found(after, name)[0])
    added = [summary_of(snapshot) for snapshot in now.snapshots() if snapshot.snapshot_id not in known]

    def total(field: str) -> int:
        return sum(count_in(summary, field) or 0 for summary in added)

    return output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
        total("added-records"), total("added-files-size"), total("added-data-files")
    )
