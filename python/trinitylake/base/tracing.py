"""Spans of OpenTelemetry for transactions, statements, scans and commits.

Nobody who does not use OpenTelemetry pays for it: it is never imported here. A process that exports spans has loaded
its API before, and that is what is looked for; where it is missing, or nobody has set a provider, a span costs a look.

The attributes are those of OpenTelemetry's conventions for databases (`db.…`), and `trinitylake.…` for what they do not
know. Names of objects are in them, and numbers; never rows, filters, messages or options.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

if TYPE_CHECKING:
    from opentelemetry import context, trace

Value: TypeAlias = str | int | bool | list[str]
Method = TypeVar("Method", bound=Callable[..., Any])


class Span:
    """A piece of work that goes on. Without OpenTelemetry it does nothing."""

    def __init__(self, span: trace.Span | None = None) -> None:
        self._span = span
        self._token: Any = None

    @property
    def is_on(self) -> bool:
        """Whether it goes anywhere, and has not ended: for whoever would work out more to say."""
        return self._span is not None

    def set(self, name: str, value: Value) -> None:
        """Say more about the work."""
        if self._span is not None:
            self._span.set_attribute(name, value)

    def part(self, operation: str) -> AbstractContextManager[Span]:
        """Work that is a part of this one, whichever span is the current one. Of what has no span no part has one."""
        return _NO_PART if self._span is None else self._part(operation, self._span)

    @contextmanager
    def _part(self, operation: str, whole: trace.Span) -> Iterator[Span]:
        from opentelemetry import trace

        with span(operation, within=trace.set_span_in_context(whole)) as inner:
            yield inner

    def enter(self) -> None:
        """Be the current span, until `leave`: what begins now is a part of this."""
        if self._span is not None:
            from opentelemetry import context, trace

            self._token = context.attach(trace.set_span_in_context(self._span))

    def leave(self) -> None:
        """Be the current span no longer, if it was."""
        if self._token is not None:
            from opentelemetry import context

            token, self._token = self._token, None
            context.detach(token)

    def end(self, error: BaseException | None = None) -> None:
        """The work is over; with an error, because of that one. A span ends once."""
        if self._span is not None:
            if error is not None:
                _fail(self._span, error)
            self._span.end()
            self._span = None


#: Without OpenTelemetry; it holds nothing, so it is one for all.
_NO_PART: AbstractContextManager[Span] = nullcontext(Span())


def begin(operation: str, collection: str = "", told: Callable[[], Mapping[str, Value]] | None = None) -> Span:
    """Work that begins now, and ends with `Span.end`. `told` is asked for more about it where somebody listens."""
    tracer = _tracer()
    if tracer is None:
        return Span()
    return Span(tracer.start_span(**_description(operation, collection, told() if told else None)))


@contextmanager
def span(
    operation: str,
    collection: str = "",
    attributes: Mapping[str, Value] | None = None,
    *,
    within: context.Context | None = None,
) -> Iterator[Span]:
    """Work in a block: the current span inside.

    Args:
        operation: what is done, such as "append".
        collection: the table that it is done to.
        attributes: more about it.
        within: what it is a part of; the current span if it is not given.
    """
    tracer = _tracer()
    if tracer is None:
        yield Span()
        return
    described = _description(operation, collection, attributes)
    # What is recorded of an error is `error.type` and its message; the SDK would add a second copy.
    with tracer.start_as_current_span(
        **described, context=within, record_exception=False, set_status_on_exception=False
    ) as current:
        try:
            yield Span(current)
        except Exception as error:
            _fail(current, error)
            raise


def traced(operation: str) -> Callable[[Method], Method]:
    """Make a span of each call of a method of something that has a `name`."""

    def decorate(method: Method) -> Method:
        @functools.wraps(method)
        def run(self: Any, *args: Any, **kwargs: Any) -> Any:
            if _tracer() is None:
                return method(self, *args, **kwargs)
            with span(operation, self.name):
                return method(self, *args, **kwargs)

        return run  # type: ignore[return-value]

    return decorate


class _Found(NamedTuple):
    """The tracer of a provider: to make one takes longer than to ask for the provider, which may be set at any time."""

    get_tracer: Callable[[str], trace.Tracer] | None
    provider: trace.TracerProvider | None
    tracer: trace.Tracer | None


_found = _Found(None, None, None)


def _tracer() -> trace.Tracer | None:
    global _found
    api = sys.modules.get("opentelemetry.trace")
    # A module that is being imported right now by another thread may lack the functions.
    get_tracer: Callable[[str], trace.Tracer] | None = getattr(api, "get_tracer", None)
    get_provider: Callable[[], trace.TracerProvider] | None = getattr(api, "get_tracer_provider", None)
    if get_tracer is None or get_provider is None:
        return None
    found, provider = _found, get_provider()
    if found.get_tracer is not get_tracer or found.provider is not provider:
        tracer = get_tracer("trinitylake")
        # It stands for one of a provider that nobody has set: its spans go nowhere, and take as long.
        is_for_none = type(tracer).__name__ == "ProxyTracer"
        _found = found = _Found(get_tracer, provider, None if is_for_none else tracer)
    return found.tracer


def _description(operation: str, collection: str, attributes: Mapping[str, Value] | None) -> dict[str, Any]:
    told: dict[str, Value] = {"db.system.name": "trinitylake", "db.operation.name": operation, **(attributes or {})}
    if collection:
        told["db.collection.name"] = collection
    return {"name": f"{operation} {collection}".rstrip(), "attributes": told}


def _fail(span: trace.Span, error: BaseException) -> None:
    from opentelemetry.trace import Status, StatusCode

    kind = getattr(error, "kind", None)
    span.set_attribute("error.type", kind if isinstance(kind, str) else type(error).__qualname__)
    span.set_status(Status(StatusCode.ERROR, str(error)))
