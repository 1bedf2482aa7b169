"""Routes of the server: handlers, and the roles that they need on the objects in path and body."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from starlette.responses import Response

from trinitylake.rest.handlers import (
    config,
    ingestion,
    metrics,
    namespaces,
    replays,
    scan_planning,
    tables,
    transactions,
    views,
)
from trinitylake.rest.handlers.body_parts import name_in, renamed
from trinitylake.rest.page import history, lakehouse, maintenance, objects, rows, search, tree
from trinitylake.rest.request.call import Call, LaterResponse
from trinitylake.rest.request.idempotency import Replay
from trinitylake.rest.security.authorization import Name, Role

Handler = Callable[[Call], Response | LaterResponse]
#: Objects that a request names in its body.
Named = Callable[[Call], Iterable[Name]]


@dataclass(frozen=True)
class Endpoint:
    """One method of one path.

    Attributes:
        role: required on the table, view or namespace in the path, and on all objects of `named`.
        writes: whether it changes the catalog. Such an endpoint does not exist for past versions.
        replay: makes the response to a repeated request that was committed before; None if the endpoint ignores
            `Idempotency-Key`.
        is_audited: whether the audit log records it although it does not change the catalog directly.
        shows_rows: whether it returns rows. The audit log records such requests too.
        ends_with_client: whether it is cancelled when the client disconnects.
        named: the objects that the body names.
    """

    method: str
    path: str
    handler: Handler
    role: Role
    writes: bool = False
    replay: Replay | None = None
    is_audited: bool = False
    ends_with_client: bool = False
    shows_rows: bool = False
    named: Named = lambda call: ()

    @property
    def changes(self) -> bool:
        """Whether the audit log records requests of this route as changes."""
        return self.writes or self.is_audited


def all_endpoints(has_page: bool) -> tuple[Endpoint, ...]:
    """All endpoints of a server. The first that matches a request handles it.

    Paths without a prefix come first: a namespace may be called `namespaces`, and a prefix may not.
    """
    return (*OTHERS, *map(without_prefix, CATALOG), *CATALOG, *(PAGE if has_page else ()))


def by_path(endpoints: Iterable[Endpoint]) -> dict[str, dict[str, Endpoint]]:
    """Endpoints by path and method, in order."""
    found: dict[str, dict[str, Endpoint]] = {}
    for endpoint in endpoints:
        found.setdefault(endpoint.path, {}).setdefault(endpoint.method, endpoint)
    return found


def without_prefix(endpoint: Endpoint) -> Endpoint:
    """The same endpoint without a prefix, which serves the latest version to clients that ignore prefixes."""
    return replace(endpoint, path=endpoint.path.replace("/{prefix}", ""))


def _read(method: str, path: str, handler: Handler) -> Endpoint:
    return Endpoint(method, path, handler, Role.READER)


def _write(
    method: str, path: str, handler: Handler, replay: Replay, named: Named = lambda call: (), role: Role = Role.WRITER
) -> Endpoint:
    return Endpoint(method, path, handler, role, writes=True, replay=replay, named=named)


_NAMESPACES = "/v1/{prefix}/namespaces"
_NAMESPACE = f"{_NAMESPACES}/{{namespace}}"
_TABLE = f"{_NAMESPACE}/tables/{{table}}"
_VIEW = f"{_NAMESPACE}/views/{{view}}"
_OPEN = "/trinitylake/v1/transactions"

#: Only for servers that sign requests. The signed request decides whether the client needs the right to write.
SIGN = _read("POST", f"{_TABLE}/sign", tables.sign)

#: Endpoints of the specification, with a prefix. They are served without a prefix too.
CATALOG = (
    # HEAD comes before GET, because the handler of GET would also accept HEAD.
    _read("HEAD", _TABLE, tables.exists),
    _read("GET", _TABLE, tables.load),
    _write("POST", _TABLE, tables.commit, replays.table),
    _write("DELETE", _TABLE, tables.drop, replays.nothing),
    _write("POST", f"{_TABLE}/unregister", tables.unregister, replays.unregistered_table),
    _read("GET", f"{_TABLE}/credentials", tables.load_credentials),
    SIGN,
    _read("POST", f"{_TABLE}/metrics", metrics.report),
    _read("POST", f"{_TABLE}/plan", scan_planning.plan),
    _read("POST", f"{_TABLE}/tasks", scan_planning.fetch_tasks),
    _read("GET", f"{_NAMESPACE}/tables", tables.list_all),
    _write("POST", f"{_NAMESPACE}/tables", tables.create, replays.new_table, name_in(tables.CreateTable)),
    _write("POST", f"{_NAMESPACE}/register", tables.register, replays.new_table, name_in(tables.Register)),
    _write("POST", "/v1/{prefix}/tables/rename", tables.rename, replays.nothing, renamed),
    _write(
        "POST",
        "/v1/{prefix}/transactions/commit",
        transactions.commit_tables,
        replays.nothing,
        transactions.changed_tables,
    ),
    _read("GET", _NAMESPACES, namespaces.list_all),
    _write("POST", _NAMESPACES, namespaces.create, replays.created_namespace, namespaces.name_to_create, Role.ADMIN),
    _read("HEAD", _NAMESPACE, namespaces.exists),
    _read("GET", _NAMESPACE, namespaces.load),
    _write("DELETE", _NAMESPACE, namespaces.drop, replays.nothing, namespaces.in_path, Role.ADMIN),
    _write(
        "POST",
        f"{_NAMESPACE}/properties",
        namespaces.update_properties,
        replays.changed_properties,
        namespaces.in_path,
        Role.ADMIN,
    ),
    _read("GET", f"{_NAMESPACE}/views", views.list_all),
    _write("POST", f"{_NAMESPACE}/views", views.create, replays.view, name_in(views.CreateView)),
    _write("POST", f"{_NAMESPACE}/register-view", views.register, replays.view, name_in(views.RegisterView)),
    _read("HEAD", _VIEW, views.exists),
    _read("GET", _VIEW, views.load),
    _write("POST", _VIEW, views.replace, replays.view),
    _write("DELETE", _VIEW, views.drop, replays.nothing),
    _write("POST", "/v1/{prefix}/views/rename", views.rename, replays.nothing, renamed),
)

#: Endpoints without a prefix.
OTHERS = (
    Endpoint(
        "POST",
        "/ingest/{namespace}/{table}",
        ingestion.write,
        Role.WRITER,
        is_audited=True,
        named=ingestion.dead_letter_table,
    ),
    _read("GET", "/v1/config", config.config),
    _read("GET", _OPEN, transactions.list_all),
    Endpoint("POST", _OPEN, transactions.begin, Role.WRITER, is_audited=True),
    _read("GET", f"{_OPEN}/{{id}}", transactions.load),
    Endpoint("POST", f"{_OPEN}/{{id}}/commit", transactions.commit, Role.WRITER, is_audited=True),
    Endpoint("POST", f"{_OPEN}/{{id}}/rollback", transactions.rollback, Role.WRITER, is_audited=True),
    _read("GET", "/trinitylake/v1/metrics", metrics.list_all),
    _read("GET", "/metrics", metrics.prometheus),
)

_PAGE = "/trinitylake/v1/page"
_PAGE_TABLE = f"{_PAGE}/{{prefix}}/namespaces/{{namespace}}/tables/{{table}}"

#: Data of the web page, if the server has it.
PAGE = (
    _read("GET", f"{_PAGE}/lakehouse", lakehouse.describe),
    _read("GET", f"{_PAGE}/address", lakehouse.resolve),
    _read("GET", f"{_PAGE}/transactions", lakehouse.unfinished),
    Endpoint("GET", f"{_PAGE}/log", history.log, Role.READER, ends_with_client=True),
    Endpoint("GET", f"{_PAGE}/diff", history.diff, Role.READER, ends_with_client=True),
    _read("GET", f"{_PAGE}/maintenance", maintenance.load),
    Endpoint("POST", f"{_PAGE}/maintenance", maintenance.begin, Role.ADMIN),
    _read("GET", f"{_PAGE}/{{prefix}}/counts", lakehouse.counts),
    _read("GET", f"{_PAGE}/{{prefix}}/search", search.search),
    Endpoint("POST", f"{_PAGE}/{{prefix}}/totals", objects.totals, Role.READER, ends_with_client=True),
    _read("GET", f"{_PAGE}/{{prefix}}/tree", tree.node),
    Endpoint("POST", f"{_PAGE}/{{prefix}}/sql", rows.query_rows, Role.READER, ends_with_client=True, shows_rows=True),
    _read("GET", _PAGE_TABLE, objects.table),
    Endpoint("GET", f"{_PAGE_TABLE}/rows", rows.rows, Role.READER, ends_with_client=True, shows_rows=True),
    _read("GET", f"{_PAGE_TABLE}/history", objects.history),
)
