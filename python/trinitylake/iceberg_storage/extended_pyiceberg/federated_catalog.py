"""A client of another REST catalog that goes to the address it was given, and to no other.

PyIceberg takes the address from the answer to `/v1/config`, follows redirects, and loads the classes that an answer
names. So whoever answers for a catalog would choose where its token and headers go, and which code runs here.
"""

from __future__ import annotations

from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.io import FileIO
from pyiceberg.typedef import EMPTY_DICT, Properties
from requests import Response, Session

from trinitylake.errors import PermissionDenied

#: What the other side may not choose: code, addresses of the catalog and of whoever gives tokens, credentials for both.
_CODE = ("py-io-impl", "py-catalog-impl", "write.py-location-provider.impl")
_OURS = (*_CODE, "auth", "credential", "token", "oauth2-server-uri", "ssl")
_OURS_BELOW = ("auth.", "header.", "rest.sigv4", "rest.signing")


class FederatedRestCatalog(RestCatalog):
    """Raises `PermissionDenied` for a catalog that leads elsewhere."""

    def _create_session(self) -> Session:
        session = super()._create_session()
        session.get_redirect_target = self._refuse_redirect  # type: ignore[assignment, method-assign]
        return session

    def _fetch_config(self) -> None:
        given, uri = dict(self.properties), self.uri
        super()._fetch_config()
        if self.uri.rstrip("/") != uri.rstrip("/"):
            raise PermissionDenied(f"the catalog at {uri} says that it is at {self.uri}: configure that address, if so")
        told = {name: value for name, value in self.properties.items() if not _is_ours(name)}
        self.properties = {**told, **{name: value for name, value in given.items() if _is_ours(name)}}

    def _load_file_io(self, properties: Properties = EMPTY_DICT, location: str | None = None) -> FileIO:
        return super()._load_file_io({name: value for name, value in properties.items() if name not in _CODE}, location)

    def _refuse_redirect(self, response: Response) -> str | None:
        if (target := Session.get_redirect_target(Session(), response)) is not None:
            raise PermissionDenied(f"the catalog at {self.uri} leads to {target}: redirects are not followed")
        return None


def _is_ours(name: str) -> bool:
    return name in _OURS or name.startswith(_OURS_BELOW)
