"""Every route of the server: its handler, and the role that it needs on what the path and the body name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from starlette.responses import Response

from trinitylake.rest.handlers import config, metrics, namespaces, replays, scan_planning, tables, transactions, views
from trinitylake.rest.handlers.body_parts import renamed
from trinitylake.rest.page import history, lakehouse, maintenance, objects, rows, search, tree
from trinitylake.rest.request.call import Call
from trinitylake.rest.request.idempotency import Replay
from trinitylake.rest.security.principals import Name, Role

Handler = Callable[[Call], Response]
#: What a request names besides the table or view in its path.
Named = Callable[[Call], Iterable[Name]]


@dataclass(frozen=True)
class Endpoint:
    """One method of one path.

    Attributes:
        role: on the table, view or namespace in the path, and on all that `named` gives.
        writes: what the past and clients of the past do not have.
        replay: how to answer a request again that was committed before; None if it cannot be sent twice.
        is_audited: for what changes something without being a write to the catalog.
        shows_rows: for rows of tables and queries, which are in the audit log, too.
        ends_with_client: for what somebody has to wait for, and is broken off when the client goes away.
        named: what else the request names: it needs the role there, also when it is answered again (`replay`).
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
        """Whether the audit log tells of it."""
        return self.writes or self.is_audited


def all_endpoints(has_page: bool) -> tuple[Endpoint, ...]:
    """What a server answers, of which the first that fits does.

    Paths without a prefix come first: a namespace may be called `namespaces`, as no prefix is.
    """
    return (*OTHERS, *map(without_prefix, CATALOG), *CATALOG, *(PAGE if has_page else ()))


def by_path(endpoints: Iterable[Endpoint]) -> dict[str, dict[str, Endpoint]]:
    """Endpoints by path and method, in the same order."""
    found: dict[str, dict[str, Endpoint]] = {}
    for endpoint in endpoints:
        found.setdefault(endpoint.path, {}).setdefault(endpoint.method, endpoint)
    return found


def without_prefix(endpoint: Endpoint) -> Endpoint:
    """The same at the latest version, for clients that ignore the prefix."""
    return replace(endpoint, path=endpoint.path.replace("/{prefix}", ""))


def _read(method: str, path: str, handler: Handler) -> Endpoint:
    return Endpoint(method, path, handler, Role.READER)


def _write(
    method: str,
    path: str,
    handler: Handler,
    replay: Replay,
    named: Named = lambda call: (),
    role: Role = Role.WRITER,
) -> Endpoint:
    return Endpoint(method, path, handler, role, writes=True, replay=replay, named=named)


_NAMESPACES = "/v1/{prefix}/namespaces"
_NAMESPACE = f"{_NAMESPACES}/{{namespace}}"
_TABLE = f"{_NAMESPACE}/tables/{{table}}"
_VIEW = f"{_NAMESPACE}/views/{{view}}"
_OPEN = "/trinitylake/v1/transactions"

#: Only some servers do it. Reading or writing is up to the request that is to be signed.
SIGN = _read("POST", f"{_TABLE}/sign", tables.sign)

#: The specification's, each with a prefix; they are served without one too, which is the latest version.
CATALOG = (
    # HEAD before GET, which answers it, too.
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
    _write("POST", f"{_NAMESPACE}/tables", tables.create, replays.new_table, tables.name_to_create),
    _write("POST", f"{_NAMESPACE}/register", tables.register, replays.new_table, tables.name_to_register),
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
    _write("POST", f"{_NAMESPACE}/views", views.create, replays.view, views.name_to_create),
    _write("POST", f"{_NAMESPACE}/register-view", views.register, replays.view, views.name_to_register),
    _read("HEAD", _VIEW, views.exists),
    _read("GET", _VIEW, views.load),
    _write("POST", _VIEW, views.replace, replays.view),
    _write("DELETE", _VIEW, views.drop, replays.nothing),
    _write("POST", "/v1/{prefix}/views/rename", views.rename, replays.nothing, renamed),
)

#: Those without a prefix.
OTHERS = (
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

#: The data of the page for browsers, where the server has one.
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
    _read("GET", f"{_PAGE}/{{prefix}}/tree", tree.node),
    Endpoint("POST", f"{_PAGE}/{{prefix}}/sql", rows.query_rows, Role.READER, ends_with_client=True, shows_rows=True),
    _read("GET", _PAGE_TABLE, objects.table),
    Endpoint("GET", f"{_PAGE_TABLE}/rows", rows.rows, Role.READER, ends_with_client=True, shows_rows=True),
    _read("GET", f"{_PAGE_TABLE}/history", objects.history),
)
