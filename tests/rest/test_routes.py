"""Routing of paths and methods to endpoints."""

from __future__ import annotations

import pytest

from rest.client import Client
from trinitylake.rest.http.routes import CATALOG, all_endpoints, by_path


def test_names_in_a_path_keep_their_escapes(http_client: Client) -> None:
    assert http_client("POST", "/v1/namespaces", {"namespace": ["a"]}).code == 200
    schema = {"type": "struct", "schema-id": 0, "fields": []}
    assert http_client("POST", "/v1/namespaces/a/tables", {"name": "x/y", "schema": schema}).code == 200
    assert http_client("GET", "/v1/latest/namespaces/a/tables/x%2Fy").code == 200
    assert http_client("GET", "/v1/latest/namespaces/a/tables/x/y").code == 404
    assert http_client("HEAD", "/v1/config").code == 200, "every path with GET has HEAD"
    assert http_client("HEAD", "/v1/latest/namespaces/a/tables/x%2Fy").code == 204


def test_without_a_prefix_a_namespace_may_be_called_namespaces(http_client: Client) -> None:
    """A client that ignores the prefix can create, load, list and drop the namespace `namespaces`: the path is not read
    as having the prefix `namespaces`."""
    assert http_client("POST", "/v1/namespaces", {"namespace": ["namespaces"]}).code == 200
    assert http_client("GET", "/v1/namespaces/namespaces").code == 200
    assert http_client("GET", "/v1/namespaces/namespaces/tables").body["identifiers"] == []
    change = {"updates": {"a": "b"}}
    assert http_client("POST", "/v1/namespaces/namespaces/properties", change).code == 200
    assert "no prefix" not in str(http_client("GET", "/v1/namespaces/namespaces/views/namespaces").body)
    assert http_client("DELETE", "/v1/namespaces/namespaces").code == 204


def test_each_endpoint_has_a_path_and_method_of_its_own() -> None:
    endpoints = all_endpoints(has_page=True)
    assert sum(map(len, by_path(endpoints).values())) == len(endpoints)
    assert all(one in endpoints for one in CATALOG)


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/v1/config", "GET, HEAD"),
        ("OPTIONS", "/v1/latest/namespaces/a/tables/b", "DELETE, GET, HEAD, POST"),
        ("GET", "/v1/tables/rename", "POST"),
    ],
)
def test_a_method_that_a_path_does_not_have_is_405_with_those_that_it_has(
    http_client: Client, method: str, path: str, allowed: str
) -> None:
    """A response 405 has the header `Allow` with the methods of the path, as HTTP requires."""
    answer = http_client(method, path)
    assert answer.code == 405
    assert answer.error == "UnsupportedOperationException"
    assert sorted(answer.headers["allow"].split(", ")) == allowed.split(", ")


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/v1/configs"), ("GET", "/v1/config/"), ("GET", "/v1//namespaces")]
)
def test_other_paths_are_not_found(http_client: Client, method: str, path: str) -> None:
    answer = http_client(method, path)
    assert (answer.code, answer.error) == (404, "NotFoundException")
