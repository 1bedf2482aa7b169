"""One request for a handler: decoded names, parsed body, principal and catalog."""

from __future__ import annotations

import json
import math
import re
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar, cast
from urllib.parse import unquote_to_bytes

from pydantic import BaseModel
from starlette.datastructures import Headers, QueryParams
from starlette.responses import Response

from trinitylake.base.json_memory_size import parsed_size_bytes
from trinitylake.lakehouse.lakehouse_version import LakehouseVersion
from trinitylake.rest.catalog.served_catalog import Commit, ServedCatalog
from trinitylake.rest.catalog.warehouses import LATEST, is_transaction, source_of
from trinitylake.rest.errors import RestError, bad_request, client_faults, input_fault
from trinitylake.rest.options import ServerOptions
from trinitylake.rest.security.authorization import Principal, Role, forbidden
from trinitylake.rest.security.locations import LocationGate
from trinitylake.rest.transactions.ownership import OWNER_PROPERTY

if TYPE_CHECKING:
    from trinitylake.iceberg_storage.file_io import LakehouseFileIO
    from trinitylake.iceberg_storage.manifests.avro_file import SizeBudget
    from trinitylake.lakehouse.lakehouse import Lakehouse
    from trinitylake.lakehouse.transaction import Transaction
    from trinitylake.rest.catalog.oldest_version import OldestVersion
    from trinitylake.rest.catalog.plan_cache import PlanCache
    from trinitylake.rest.limits import SharedLimit
    from trinitylake.rest.maintenance.estimates import MaintenanceEstimates
    from trinitylake.rest.maintenance.schedule import MaintenanceSchedule
    from trinitylake.rest.metadata_limits import ManifestLimit
    from trinitylake.rest.outbound import Outbound
    from trinitylake.rest.server_metrics import MetricsReports, ServerMetrics
    from trinitylake.rest.transactions.open_transactions import OpenTransactions
    from trinitylake.rest.transactions.table_writers import TableWriters
    from trinitylake.rest.workers.pool import WorkerPool

#: Prefix of the properties of a commit that identify its principal and request. Clients cannot set them.
RESERVED_PROPERTY_PREFIX = "rest."
#: Prefix of the ids of transactions of requests with an `Idempotency-Key`.
REQUEST_ID_PREFIX = "rest-"
PRINCIPAL_PROPERTY = OWNER_PROPERTY
REQUEST_PROPERTY = f"{RESERVED_PROPERTY_PREFIX}request-id"
ROUTE_PROPERTY = f"{RESERVED_PROPERTY_PREFIX}route"

#: Name of the catalog in the SQL of a client.
SQL_CATALOG_HEADER = "x-trinitylake-catalog"
#: Header of clients that let the server plan all of their batch scans if the response for a table asks for it. The
#: catalogs that `trinitylake.spark.connect` configures send it.
SCAN_PLANNING_HEADER = "x-trinitylake-scan-planning"
#: Versions of Iceberg's Java library, as in the header `x-client-version`, for which server-side planning is tested.
_PLANNING_CLIENT = re.compile(r"\b1\.11\.\d+\b")

#: Namespace of open transactions, for clients that only have SQL (`transaction_namespaces.py`).
RESERVED_NAMESPACE = ("sys", "transactions")

#: Memory of a write in an open transaction, in addition to its body.
_REQUEST_SIZE_BYTES = 1 << 10
_INTEGER_MIN, _INTEGER_MAX = -(1 << 63), (1 << 63) - 1
_INTEGER_MAX_LENGTH = 20
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")

Model = TypeVar("Model", bound=BaseModel)

#: Separator of the parts of a namespace (the unit separator).
SEPARATOR = "\x1f"


class Delegation(Protocol):
    """Access delegation for data files. `S3Delegation`, which imports this module, implements it."""

    @property
    def signs(self) -> bool:
        """Whether the server signs requests of clients to the store."""

    def is_requested(self, call: Call) -> bool:
        """Whether the client asks for access that the server can delegate."""

    def added(self, call: Call, identifier: tuple[str, ...], response: Response) -> Response:
        """A response that holds a table, with access to its files if the client asks for it and has the right."""

    def credentials(self, call: Call, identifier: tuple[str, ...], table: Response) -> list[dict[str, Any]]:
        """Temporary credentials for the files of a table; empty if there are none."""

    def sign(self, call: Call, identifier: tuple[str, ...], table: Response | None) -> dict[str, Any]:
        """The response to a sign request. `table` is None for a table that is only staged."""


class LaterResponse(NamedTuple):
    """A response that depends on a future. No thread waits for the future.

    Attributes:
        answer: makes the response when the future is done.
    """

    future: Future[Any]
    answer: Callable[[], Response]


@dataclass
class Service:
    """State that all requests share."""

    lake: Lakehouse
    transactions: OpenTransactions
    writers: TableWriters
    """Writers for the rows of ingest requests."""
    reports: MetricsReports
    endpoints: list[tuple[str, str, bool]]
    """Method and path of each endpoint with a prefix, and whether the endpoint writes."""
    options: ServerOptions
    metrics: ServerMetrics
    io: LakehouseFileIO
    """For reading. Writes use the file access of the catalog."""
    delegation: Delegation | None
    """Access delegation, if enabled."""
    outbound: Outbound
    plans: PlanCache
    oldest_version: OldestVersion
    estimates: MaintenanceEstimates
    schedule: MaintenanceSchedule
    workers: WorkerPool
    long_requests: SharedLimit
    """Limit on requests of the page that search, compare versions or read rows."""
    manifests: ManifestLimit
    shows_rows: bool
    """Whether the page shows rows of tables."""
    latest_commits: deque[int] = field(default_factory=lambda: deque(maxlen=1000))
    """The newest versions that requests committed outside of open transactions."""


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
    """Whether the client is still connected, as far as is known."""
    commit: Commit = field(init=False)
    """The commit of this request, if it makes one."""
    base_version: int | None = field(init=False, default=None)
    """Base version of the open transaction of the request, after `catalog` was called."""
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
        """The prefix of the path, which selects a version or an open transaction (`warehouses.py`)."""
        return self.name("prefix") if "prefix" in self.raw_names else LATEST

    @property
    def sql_catalog(self) -> str:
        """Name of this catalog in the client's SQL, if the client sends it."""
        return self.headers.get(SQL_CATALOG_HEADER, "")

    @property
    def has_tracked_scans(self) -> bool:
        """Whether the server plans all scans of this client, so that a transaction can track its reads."""
        is_declared = self.headers.get(SCAN_PLANNING_HEADER, "") == "server"
        return is_declared and _PLANNING_CLIENT.search(self.headers.get("x-client-version", "")) is not None

    def authorize(self, role: Role) -> None:
        """Check the role on the object in the path. Raises `RestError` 403.

        `require` checks the objects in the body.
        """
        if "table" in self.raw_names or "view" in self.raw_names:
            identifier = self.identifier("table" if "table" in self.raw_names else "view")
            self.principal.require(role, identifier)
        elif "namespace" in self.raw_names and not self.is_reserved(self.namespace()):
            self.principal.require_sight(self.namespace())

    def require(self, role: Role, identifier: tuple[str, ...]) -> None:
        """Check the role of the principal on an object that the body names. Raises `RestError` 403."""
        self.commit.names.append(".".join(identifier))
        self.principal.require(role, identifier)

    def is_reserved(self, namespace: tuple[str, ...]) -> bool:
        """Whether a namespace represents open transactions, which have their own rules of visibility."""
        return self.prefix == LATEST and namespace[: len(RESERVED_NAMESPACE)] == RESERVED_NAMESPACE

    def locations(self, catalog: ServedCatalog) -> LocationGate:
        """The checks of all locations in the body."""
        return LocationGate(catalog.file_io(), self.principal, self.service.options.overrides_locations)

    def catalog(self) -> AbstractContextManager[ServedCatalog]:
        """Context manager: the catalog that the prefix selects.

        Raises `RestError` 403 for a write to a past version and for a transaction of another principal, and 413 for a
        transaction that has used up its memory.
        """
        if self.prefix == LATEST:
            return nullcontext(self.served(self.service.lake))
        return self._catalog_of_prefix()

    @contextmanager
    def _catalog_of_prefix(self) -> Iterator[ServedCatalog]:
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
                raise forbidden(f"version {source.version} is read-only: write through @latest or @txn")
            if not isinstance(source, LakehouseVersion):
                self.base_version = source.base_version
            yield self.served(source)

    def served(self, source: Lakehouse | LakehouseVersion | Transaction) -> ServedCatalog:
        """The catalog of this request over the latest version, a past version or a transaction."""
        catalog = ServedCatalog(source, self.commit, self.service.workers)
        if is_transaction(self.prefix):
            catalog.transaction_catalog = self.sql_catalog
            catalog.has_tracked_scans = self.has_tracked_scans
        return catalog

    def name(self, parameter: str) -> str:
        """A name in the path. Raises `RestError` 400 if it is not UTF-8.

        A `+` is a space, as in forms: Iceberg's Java client encodes names with `URLEncoder`, and its server decodes
        them accordingly (`RESTUtil.decodeString`). All clients encode a plus as `%2B`. No client encodes the prefix.
        """
        if (name := self._names.get(parameter)) is None:
            raw = self.raw_names[parameter]
            name = self._names[parameter] = decoded(raw if parameter == "prefix" else raw.replace("+", " "))
        return name

    def name_for_log(self, parameter: str) -> str:
        """Like `name`, but unchanged if it is not valid UTF-8."""
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
        """The parsed body. It is parsed once, so callers must not change it.

        Raises `RestError` 400 for invalid JSON. For a body that does not match the model, raises `RestError` 400 or
        pydantic's error.
        """
        if (known := self._parsed.get(model)) is None:
            known = self._parsed[model] = parsed_json(model, self.body)
        return cast(Model, known)

    def incoming_files(self) -> AbstractContextManager[SizeBudget]:
        """Budget of the commit for reading incoming manifests."""
        return self.service.manifests.for_commit(self.principal.name)

    def flag(self, parameter: str) -> bool:
        """A boolean parameter of the query, by default false."""
        return self.query.get(parameter, "false").lower() == "true"


def parsed_json(model: type[Model], text: bytes) -> Model:
    """A model from JSON of a client. Raises as `Call.parsed`."""
    document = strict_json(text)
    with client_faults("the body", document):  # PyIceberg's models access values before they are validated
        return model.model_validate(document)


def strict_json(body: bytes) -> Any:
    """Parse JSON by stricter rules than Python's, so that other languages can read the values back.

    Raises `RestError` 400 for invalid JSON, a key that an object has twice, numbers outside of 64-bit integers and
    doubles, and strings that are not valid Unicode.
    """
    try:
        text = body.decode()  # `json` would decode some bytes as UTF-16
        document = _JSON.decode(text)
        if _SURROGATE.search(text):  # an escaped surrogate: fails to encode unless it is one of a pair
            json.dumps(document, ensure_ascii=False).encode()
    except UnicodeDecodeError as error:
        raise bad_request("the body is not JSON: it is not UTF-8") from error
    except UnicodeEncodeError as error:
        raise bad_request("the body is not JSON: a string contains half of a surrogate pair") from error
    except (ValueError, RecursionError) as error:
        raise bad_request(f"the body is not JSON: {input_fault(error)}") from error
    return document


def _object(members: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(members)
    if len(found) < len(members):
        [(name, _)] = Counter(name for name, _ in members).most_common(1)
        raise ValueError(f"an object has the key {name[:100]!r} twice")
    return found


def _integer(text: str) -> int:
    if len(text) > _INTEGER_MAX_LENGTH or not _INTEGER_MIN <= (number := int(text)) <= _INTEGER_MAX:
        raise ValueError(f"the number {text[:_INTEGER_MAX_LENGTH]} does not fit into 64 bits")
    return number


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text[:_INTEGER_MAX_LENGTH]} is not a number of JSON")
    return number


#: Made once: `json.loads` would make one for each body.
_JSON = json.JSONDecoder(object_pairs_hook=_object, parse_int=_integer, parse_float=_finite, parse_constant=_finite)


def decoded(raw: str) -> str:
    """A decoded path segment. A `+` is unchanged."""
    if "%" not in raw and raw.isascii():
        return raw
    try:
        return unquote_to_bytes(raw).decode()
    except UnicodeDecodeError as error:
        raise bad_request(f"{raw!r} in the path is not UTF-8") from error


def namespace_of(text: str) -> tuple[str, ...]:
    """A namespace from a path or query. Raises as `checked_namespace`."""
    return checked_namespace(text.split(SEPARATOR))


def checked_namespace(parts: list[str] | tuple[str, ...]) -> tuple[str, ...]:
    """The parts of a namespace. Raises `RestError` 400 without parts and for an invalid part.

    A part may not be empty, contain a dot, or start or end with a space, so that each namespace has one name in roles
    and in the audit log. The lakehouse joins the parts with dots, and PyIceberg strips spaces, so `("a.b",)` would be
    another name of `("a", "b")`, and `("a ",)` of `("a",)`.
    """
    if not parts or not all(parts) or any("." in part or part != part.strip() for part in parts):
        raise bad_request(
            f"{json.dumps(list(parts))[:1000]} is not a namespace: a part may not be empty, contain a dot, or start or "
            "end with a space"
        )
    return tuple(parts)


def json_response(document: Any, code: int = 200) -> Response:
    return Response(json.dumps(document), code, media_type="application/json")


def no_content() -> Response:
    return Response(status_code=204)
