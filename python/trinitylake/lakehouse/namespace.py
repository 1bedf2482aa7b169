"""A namespace in one version."""

from __future__ import annotations

from dataclasses import dataclass, field

from trinitylake.base.markup import framed, heading, pairs, shown


@dataclass(frozen=True, slots=True)
class Namespace:
    """A namespace and its properties (`NamespaceDef`, format §6).

    `id` never changes. A namespace that is dropped and created again has another id.
    """

    name: str
    id: str = field(repr=False)
    properties: dict[str, str]

    @shown
    def _repr_html_(self) -> str:
        return framed(heading("namespace", self.name), pairs(self.properties.items(), caption="properties"))
