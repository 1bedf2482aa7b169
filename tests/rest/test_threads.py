"""The threads that handlers run on, and from a path to its endpoint."""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar

import pytest

from trinitylake.rest.errors import RestError, response_of
from trinitylake.rest.http.router import Router
from trinitylake.rest.http.routes import CATALOG, OTHERS, all_endpoints
from trinitylake.rest.http.threads import Threads

named: ContextVar[str] = ContextVar("named", default="nobody")


def test_a_call_returns_and_raises_as_its_function_does_and_in_the_context_of_its_caller() -> None:
    """Spans of traces are kept in the context: without it those of a commit belonged to no request."""

    def fails() -> None:
        raise KeyError("lost")

    async def run() -> str:
        threads = Threads(1)
        named.set("a request")
        with pytest.raises(KeyError, match="lost"):
            await threads.run(fails)
        found = await threads.run(named.get)
        threads.end()
        return found

    assert asyncio.run(run()) == "a request"


def test_who_is_cancelled_while_waiting_for_a_thread_never_begins_and_who_has_begun_goes_on() -> None:
    """A request that was answered with "send it again" since the server ends, and waited for a thread, was committed
    a moment later.
    """
    goes_on, has_begun, done = threading.Event(), threading.Event(), []

    def first() -> None:
        has_begun.set()
        goes_on.wait(10)
        done.append("first")

    async def run() -> None:
        threads = Threads(1)
        tasks = [asyncio.create_task(threads.run(first)), asyncio.create_task(threads.run(done.append, "second"))]
        while not has_begun.is_set():
            await asyncio.sleep(0.001)
        for task in tasks:
            task.cancel()
        assert all(
            isinstance(one, asyncio.CancelledError) for one in await asyncio.gather(*tasks, return_exceptions=True)
        )
        goes_on.set()
        await threads.run(done.append, "third")
        threads.end()

    asyncio.run(run())
    assert done == ["first", "third"]


def test_the_first_endpoint_that_fits_answers_and_names_keep_their_escapes() -> None:
    router = Router(all_endpoints(has_page=True))
    endpoint, names = router.find("GET", "/v1/latest/namespaces/a%1Fb/tables/x%2Fy")
    assert endpoint.path == "/v1/{prefix}/namespaces/{namespace}/tables/{table}"
    assert names == {"prefix": "latest", "namespace": "a%1Fb", "table": "x%2Fy"}
    # What answers GET answers HEAD, unless something else does.
    assert router.find("HEAD", "/v1/config")[0].path == "/v1/config"
    assert router.find("HEAD", "/v1/latest/namespaces/n/tables/t")[0].method == "HEAD"


def test_without_a_prefix_a_namespace_may_be_called_namespaces() -> None:
    """A client that ignores the prefix could make the namespace `namespaces` and drop it, but not load it or list what
    is in it: 404, "there is no prefix 'namespaces'"."""
    router = Router(all_endpoints(has_page=True))
    for method, path in (
        ("GET", "/v1/namespaces/namespaces"),
        ("DELETE", "/v1/namespaces/namespaces"),
        ("GET", "/v1/namespaces/namespaces/tables"),
        ("POST", "/v1/namespaces/namespaces/properties"),
        ("GET", "/v1/namespaces/namespaces/views/namespaces"),
    ):
        names = router.find(method, path)[1]
        assert (names["namespace"], names.get("prefix")) == ("namespaces", None), path
    # Where there is a prefix it is one, whatever the names after it are.
    for endpoint in CATALOG:
        path = endpoint.path.format(prefix="version~1", namespace="namespaces", table="tables", view="views")
        assert router.find(endpoint.method, path)[0] is endpoint


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/v1/config", "GET, HEAD"),
        ("OPTIONS", "/v1/latest/namespaces/a/tables/b", "DELETE, GET, HEAD, POST"),
        ("GET", "/v1/tables/rename", "POST"),
    ],
)
def test_a_method_that_a_path_does_not_have_is_told_with_those_that_it_has(
    method: str, path: str, allowed: str
) -> None:
    """HTTP demands it, and the router before this one did it: 405 came without the header `Allow`."""
    with pytest.raises(RestError) as refused:
        Router(all_endpoints(has_page=True)).find(method, path)
    assert response_of(refused.value, str).headers["allow"] == allowed


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        ("PUT", "/v1/config", 405),
        ("POST", "/v1/config", 405),
        ("GET", "/v1/configs", 404),
        ("GET", "/v1/config/", 404),
        ("GET", "/v1/config\n", 404),
        ("GET", "/v1//namespaces", 404),
        ("GET", "", 404),
    ],
)
def test_other_paths_and_methods_are_refused(method: str, path: str, code: int) -> None:
    with pytest.raises(RestError) as refused:
        Router((*CATALOG, *OTHERS)).find(method, path)
    assert refused.value.code == code
