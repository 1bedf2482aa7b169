"""One request, as a handler sees it: names decoded, body parsed, and the catalog it is about."""

from __future__ import annotations

import json
import math
import re
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast
from urllib.parse import unquote_to_bytes

from pydantic import BaseModel
from starlette.datastructures import Headers, QueryParams
from starlette.responses import Response

from trinitylake.base.parsed_size import parsed_size_bytes
from trinitylake.lakehouse.lakehouse_version import LakehouseVersion
from trinitylake.rest.catalog.addresses import LATEST, source_of
from trinitylake.rest.catalog.served_catalog import Commit, ServedCatalog
from trinitylake.rest.errors import RestError, bad_request, client_faults
from trinitylake.rest.options import ServerOptions
from trinitylake.rest.security.locations import LocationGate
from trinitylake.rest.security.principals import Principal, Role
from trinitylake.rest.transactions.ownership import OWNER_PROPERTY

if TYPE_CHECKING:
    from trinitylake.iceberg_storage.file_io import LakehouseFileIO
    from trinitylake.iceberg_storage.manifests.avro_size import SizeBudget
    from trinitylake.lakehouse.lakehouse import Lakehouse
    from trinitylake.lakehouse.transaction import Transaction
    from trinitylake.rest.catalog.oldest_version import OldestVersion
    from trinitylake.rest.catalog.plan_cache import PlanCache
    from trinitylake.rest.limits import SharedLimit
    from trinitylake.rest.maintenance.estimates import MaintenanceEstimates
    from trinitylake.rest.metadata_limits import ManifestsAtWork
    from trinitylake.rest.outbound import Outbound
    from trinitylake.rest.server_metrics import MetricsReports, ServerMetrics
    from trinitylake.rest.transactions.open_transactions import OpenTransactions
    from trinitylake.rest.workers.pool import WorkerPool

#: Properties of a commit that tell who made it, and in which request; nobody else can set them.
RESERVED_PROPERTY_PREFIX = "rest."
#: Ids of the transactions of requests with an `Idempotency-Key`.
REQUEST_ID_PREFIX = "rest-"
PRINCIPAL_PROPERTY = OWNER_PROPERTY
REQUEST_PROPERTY = f"{RESERVED_PROPERTY_PREFIX}request-id"
ROUTE_PROPERTY = f"{RESERVED_PROPERTY_PREFIX}route"

#: Open transactions, for clients that have nothing but SQL (`transaction_namespaces.py`).
RESERVED_NAMESPACE = ("sys", "transactions")

#: What a write takes of an open transaction besides its body.
_REQUEST_SIZE_BYTES = 1 << 10
_INTEGER_MIN, _INTEGER_MAX = -(1 << 63), (1 << 63) - 1
_INTEGER_MAX_LENGTH = 20
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")

Model = TypeVar("Model", bound=BaseModel)

#: Between the parts of a nested namespace (the unit separator).
SEPARATOR = "\x1f"


class FileAccess(Protocol):
    """Help for clients to data files (`files/delegation.py`)."""

    @property
    def signs(self) -> bool:
        """Whether it signs requests to the store."""

    def is_wished(self, call: Call) -> bool:
        """Whether the client wants, with the answer to its request, what can be given."""

    def added(self, call: Call, identifier: tuple[str, ...], response: Response) -> Response:
        """An answer that holds a table, with access to it if the client wants that and may have it."""

    def credentials(self, call: Call, identifier: tuple[str, ...], table: Response) -> list[dict[str, Any]]:
        """Temporary credentials for a table; none if there are none to have."""

    def sign(self, call: Call, identifier: tuple[str, ...], table: Response | None) -> dict[str, Any]:
        """The answer to a request to sign. `table` is None for one that is staged, and not there yet."""


@dataclass
class Service:
    """What all requests share."""

    lake: Lakehouse
    transactions: OpenTransactions
    reports: MetricsReports
    endpoints: list[tuple[str, str, bool]]
    """Method, path and whether it writes, of each route that has a prefix."""
    options: ServerOptions
    metrics: ServerMetrics
    io: LakehouseFileIO
    """For reading; what is written goes through the catalog's own."""
    delegation: FileAccess | None
    """What helps clients to data files, if anything does."""
    outbound: Outbound
    plans: PlanCache
    oldest_version: OldestVersion
    estimates: MaintenanceEstimates
    workers: WorkerPool
    long_requests: SharedLimit
    """Those of the page that search, compare versions or read rows."""
    manifests: ManifestsAtWork
    shows_rows: bool
    """Whether the page shows rows of tables."""
    latest_commits: deque[int] = field(default_factory=lambda: deque(maxlen=1000))
    """The newest versions that requests have committed outside of open transactions."""


@dataclass
class Call:
    """One request."""

    service: Service
    method: str
    route: str
    writes: bool
    raw_names: dict[str, str]
    query: QueryParams
    headers: Headers
    body: bytes
    principal: Principal
    request_id: str
    is_wanted: Callable[[], bool] = lambda: True
    """Whether the client still waits for the answer, as far as is known."""
    commit: Commit = field(init=False)
    """What this request commits, if it does."""
    base_version: int | None = field(init=False, default=None)
    """Of the open transaction that it is about, once `catalog` has opened that."""
    _names: dict[str, str] = field(init=False, default_factory=dict)
    _parsed: dict[type[BaseModel], BaseModel] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.commit = Commit(
            author=self.principal.name,
            properties={
                PRINCIPAL_PROPERTY: self.principal.name,
                REQUEST_PROPERTY: self.request_id,
                ROUTE_PROPERTY: f"{self.method} {self.route}",
            },
        )

    @property
    def prefix(self) -> str:
        """Which state it is about (`addresses.py`)."""
        return self.name("prefix") if "prefix" in self.raw_names else LATEST

    def authorize(self, role: Role) -> None:
        """Check the role on what the path names. What the body names is checked by `require`.

        Raises `RestError` 403.
        """
        if "table" in self.raw_names or "view" in self.raw_names:
            identifier = self.identifier("table" if "table" in self.raw_names else "view")
            self.principal.require(role, identifier)
        elif "namespace" in self.raw_names and not self.is_reserved(self.namespace()):
            self.principal.require_sight(self.namespace())

    def require(self, role: Role, identifier: tuple[str, ...]) -> None:
        """For what a body names. Raises `RestError` 403 unless the principal has that role on it."""
        self.commit.names.append(".".join(identifier))
        self.principal.require(role, identifier)

    def is_reserved(self, namespace: tuple[str, ...]) -> bool:
        """Whether a namespace stands for open transactions, whose sight is decided for each of them."""
        return self.prefix == LATEST and namespace[: len(RESERVED_NAMESPACE)] == RESERVED_NAMESPACE

    def locations(self, catalog: ServedCatalog) -> LocationGate:
        """The gate that every location in the body passes."""
        return LocationGate(catalog.file_io(), self.principal, self.service.options.overrides_locations)

    def catalog(self) -> AbstractContextManager[ServedCatalog]:
        """The catalog that the prefix leads to.

        Raises `RestError` 403 for a write to the past and for a transaction of somebody else, 413 for one that is full.
        """
        if self.prefix == LATEST:
            return nullcontext(self.served(self.service.lake))
        return self._catalog_elsewhere()

    @contextmanager
    def _catalog_elsewhere(self) -> Iterator[ServedCatalog]:
        service = self.service
        with source_of(
            self.prefix,
            service.lake,
            service.transactions,
            self.principal,
            writes=self.writes,
            sent_size_bytes=_REQUEST_SIZE_BYTES + parsed_size_bytes(self.body) if self.writes else 0,
        ) as source:
            if self.writes and isinstance(source, LakehouseVersion):
                raise RestError(
                    403, "ForbiddenException", f"version {source.version} is read-only: write through @latest or @txn"
                )
            if not isinstance(source, LakehouseVersion):
                self.base_version = source.base_version
            yield self.served(source)

    def served(self, source: Lakehouse | LakehouseVersion | Transaction) -> ServedCatalog:
        """The catalog over a state of the lakehouse, for this request."""
        return ServedCatalog(source, self.commit, self.service.workers)

    def name(self, parameter: str) -> str:
        """A name in the path. Raises `RestError` 400 for one that is not UTF-8.

        A `+` is a blank, as in forms: Iceberg's Java client escapes names with `URLEncoder`, and its own server reads
        them so (`RESTUtil.decodeString`). Every client writes a plus as `%2B`. The prefix is not escaped by anybody.
        """
        if (name := self._names.get(parameter)) is None:
            raw = self.raw_names[parameter]
            name = self._names[parameter] = decoded(raw if parameter == "prefix" else raw.replace("+", " "))
        return name

    def name_for_log(self, parameter: str) -> str:
        """The same, or as it was sent if it is not UTF-8."""
        try:
            return self.name(parameter)
        except RestError:
            return self.raw_names[parameter]

    def namespace(self) -> tuple[str, ...]:
        """The namespace in the path."""
        return namespace_of(self.name("namespace"))

    def identifier(self, parameter: str) -> tuple[str, ...]:
        """The table or view in the path, with its namespace."""
        return (*self.namespace(), self.name(parameter))

    def parsed(self, model: type[Model]) -> Model:
        """The body, parsed once; treat it as immutable.

        Raises `RestError` 400 for what is not JSON, and that or pydantic's error for what does not fit.
        """
        if (known := self._parsed.get(model)) is None:
            known = self._parsed[model] = parsed_json(model, self.body)
        return cast(Model, known)

    def incoming(self) -> AbstractContextManager[SizeBudget]:
        """What a commit may read of the manifests that it brings."""
        return self.service.manifests.for_commit(self.principal.name)

    def flag(self, parameter: str) -> bool:
        """A true or false of the query; false if it is not there."""
        return self.query.get(parameter, "false").lower() == "true"


def parsed_json(model: type[Model], text: bytes) -> Model:
    """A body, or what a client has sent in it as a text. Raises as `Call.parsed` does."""
    document = strict_json(text)
    with client_faults("the body"):  # PyIceberg's models look into what they get before it is checked
        return model.model_validate(document)


def strict_json(body: bytes) -> Any:
    """A body of JSON that can be kept, and sent on to whoever asks: Python reads and writes more than JSON has.

    Raises `RestError` 400 for what is not JSON; for numbers that no double and no 64 bits hold, which other languages
    cannot read; and for text that UTF-8 cannot hold.
    """
    try:
        text = body.decode()  # bytes would be taken for UTF-16 where they look so
        document = _JSON.decode(text)
        if _SURROGATE.search(text):  # half of a character, unless it is followed by the other half
            json.dumps(document, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise bad_request(f"the body is not JSON: {error}") from error
    return document


def _integer(text: str) -> int:
    if len(text) > _INTEGER_MAX_LENGTH or not _INTEGER_MIN <= (number := int(text)) <= _INTEGER_MAX:
        raise ValueError(f"the number {text[:_INTEGER_MAX_LENGTH]} is not one of 64 bits")
    return number


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text[:_INTEGER_MAX_LENGTH]} is not a number of JSON")
    return number


#: Made once: `json.loads` would make one for each body.
_JSON = json.JSONDecoder(parse_int=_integer, parse_float=_finite, parse_constant=_finite)


def decoded(raw: str) -> str:
    """A path segment without its escapes. A `+` stays one."""
    if "%" not in raw and raw.isascii():
        return raw
    try:
        return unquote_to_bytes(raw).decode()
    except UnicodeDecodeError as error:
        raise bad_request(f"{raw!r} in the path is not UTF-8") from error


def namespace_of(text: str) -> tuple[str, ...]:
    """A namespace as a path or query writes it. Raises `RestError` 400 for an empty part."""
    return checked_namespace(text.split(SEPARATOR))


def checked_namespace(parts: list[str] | tuple[str, ...]) -> tuple[str, ...]:
    """The parts of a namespace. Raises `RestError` 400 for none, and for a part that is empty, has a dot or blank ends.

    One namespace has one name, which roles and the audit log are about. The lakehouse joins the parts with dots, so
    `("a.b",)` would be another name of `("a", "b")`; and PyIceberg strips them, so `("a ",)` would be one of `("a",)`.
    """
    if not parts or not all(parts) or any("." in part or part != part.strip() for part in parts):
        raise bad_request(
            f"{list(parts)!r} is not a namespace: its parts are not empty, have no dot in them, and neither begin nor "
            "end with a blank"
        )
    return tuple(parts)


def json_response(document: Any, code: int = 200) -> Response:
    """A document as JSON."""
    return Response(json.dumps(document), code, media_type="application/json")


def no_content() -> Response:
    """204."""
    return Response(status_code=204)
