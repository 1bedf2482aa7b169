"""One namespace, as one version has it."""

from __future__ import annotations

from dataclasses import dataclass, field

from trinitylake.base.markup import framed, heading, pairs, shown


@dataclass(frozen=True, slots=True)
class Namespace:
    """A namespace and its properties (`NamespaceDef`, format §6).

    `id` is constant over the namespace's life: dropped and created again, it has another one.
    """

    name: str
    id: str = field(repr=False)
    properties: dict[str, str]

    @shown
    def _repr_html_(self) -> str:
        return framed(heading("namespace", self.name), pairs(self.properties.items(), caption="properties"))
