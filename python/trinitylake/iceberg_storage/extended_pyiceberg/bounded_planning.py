"""Scans that are planned in bounded work, whatever their filter is.

PyIceberg binds the filter again for each file to find what is left of it there: a filter of 100,000 values took 20
seconds for a handful of files. Here a filter is bound once, and what is left of it is found once for each partition.
What remains is one look at each value for each file and partition, which is counted and limited.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pyiceberg.expressions import (
    AlwaysFalse,
    AlwaysTrue,
    And,
    BooleanExpression,
    BoundPredicate,
    Not,
    Or,
    SetPredicate,
    UnboundPredicate,
)
from pyiceberg.expressions.visitors import BoundBooleanExpressionVisitor, ResidualEvaluator
from pyiceberg.manifest import DataFile, DataFileContent, ManifestEntry, ManifestFile
from pyiceberg.partitioning import PartitionField
from pyiceberg.schema import Schema
from pyiceberg.table import DataScan, ManifestGroupPlanner
from pyiceberg.typedef import Record

#: Looks at a predicate, or at a value of one.
MAX_LOOKS = 20_000_000


class PlanTooLarge(Exception):
    """A filter has so many values, and the table so many files, that the plan would take too long."""


class DeletesNotPlanned(Exception):
    """Rows of the table were deleted by their values, which PyIceberg does not plan."""


def n_values(filter: BooleanExpression) -> int:
    """How many predicates and values a filter has."""
    count, rest = 0, [filter]
    while rest:
        match rest.pop():
            case And(left=left, right=right) | Or(left=left, right=right):
                rest += left, right
            case Not(child=child):
                rest.append(child)
            case SetPredicate() as predicate:
                count += 1 + len(predicate.literals)
            case _:
                count += 1
    return count


def bounded(scan: DataScan, max_looks: int = MAX_LOOKS) -> DataScan:
    """The same scan, whose `plan_files` raises `PlanTooLarge` where it would take too many looks, and
    `DeletesNotPlanned`."""
    scan.__dict__["_manifest_planner"] = _Planner(scan, max_looks)
    return scan


class _Planner(ManifestGroupPlanner):
    def __init__(self, scan: DataScan, max_looks: int) -> None:
        super().__init__(scan.table_metadata, scan.io, scan.row_filter, scan.case_sensitive, scan.options)
        self._looks_each = n_values(self.row_filter)
        self._looks_left = max_looks

    def look(self) -> None:
        """Count a look at the whole filter. Raises `PlanTooLarge`."""
        self._looks_left -= self._looks_each
        if self._looks_left < 0:
            raise PlanTooLarge(
                f"a filter of {self._looks_each} predicates and values is too large to be planned by the server for so "
                "many files: plan the scan at the client"
            )

    def plan_manifest_entries(self, manifests: Iterable[ManifestFile]) -> Iterator[list[ManifestEntry]]:
        for entries in super().plan_manifest_entries(manifests):
            if any(one.data_file.content is DataFileContent.EQUALITY_DELETES for one in entries):
                raise DeletesNotPlanned("rows of the table were deleted by their values")
            yield entries

    def _build_metrics_evaluator(self) -> Callable[[DataFile], bool]:
        evaluate = super()._build_metrics_evaluator()

        def counted(file: DataFile) -> bool:
            self.look()
            return evaluate(file)

        return counted

    def _build_residual_evaluator(self, spec_id: int) -> Callable[[DataFile], ResidualEvaluator]:
        residuals = _Residuals(self, spec_id)
        return lambda _: residuals


class _Residuals(ResidualEvaluator):
    """What is left of a filter in each partition of a spec. For one thread."""

    def __init__(self, planner: _Planner, spec_id: int) -> None:
        metadata = planner.table_metadata
        super().__init__(metadata.schema(), metadata.specs()[spec_id], planner.case_sensitive, planner.row_filter)
        self._planner = planner
        self._fields = Schema(*self.spec.partition_type(self.schema).fields)
        self._known: dict[Record, BooleanExpression] = {}
        self._bound: dict[int, BooleanExpression] = {}  # by the identity of the predicate, as below
        self._projected: dict[int, list[tuple[BooleanExpression | None, BooleanExpression | None]]] = {}

    def residual_for(self, partition_data: Record) -> BooleanExpression:
        if self.spec.is_unpartitioned():
            return self.expr
        if partition_data not in self._known:
            self._planner.look()
            self._known[partition_data] = self.eval(partition_data)
        return self._known[partition_data]

    def visit_unbound_predicate(self, predicate: UnboundPredicate) -> BooleanExpression:
        if (bound := self._bound.get(id(predicate))) is None:
            bound = self._bound[id(predicate)] = predicate.bind(self.schema, case_sensitive=self.case_sensitive)
        if not isinstance(bound, BoundPredicate):
            return bound
        left = self.visit_bound_predicate(bound)
        return left if isinstance(left, AlwaysTrue | AlwaysFalse) else predicate

    def visit_bound_predicate(self, predicate: BoundPredicate) -> BooleanExpression:
        for strict, inclusive in self._projections(predicate):
            if isinstance(self._here(strict), AlwaysTrue):
                return AlwaysTrue()
            if isinstance(self._here(inclusive), AlwaysFalse):
                return AlwaysFalse()
        return predicate

    def _projections(
        self, predicate: BoundPredicate
    ) -> list[tuple[BooleanExpression | None, BooleanExpression | None]]:
        """On each field of the partitions: what holds only where the predicate does, and what holds where it may."""
        if (found := self._projected.get(id(predicate))) is None:
            parts = self.spec.fields_by_source_id(predicate.term.ref().field.field_id)
            found = self._projected[id(predicate)] = [self._projection(part, predicate) for part in parts]
        return found

    def _projection(
        self, part: PartitionField, predicate: BoundPredicate
    ) -> tuple[BooleanExpression | None, BooleanExpression | None]:
        transform: Any = part.transform
        strict, inclusive = transform.strict_project(part.name, predicate), transform.project(part.name, predicate)
        return self._on_fields(strict), self._on_fields(inclusive)

    def _on_fields(self, projection: UnboundPredicate | None) -> BooleanExpression | None:
        return None if projection is None else projection.bind(self._fields, case_sensitive=self.case_sensitive)

    def _here(self, projection: BooleanExpression | None) -> BooleanExpression | None:
        if not isinstance(projection, BoundPredicate):
            return projection
        return BoundBooleanExpressionVisitor.visit_bound_predicate(self, projection)
