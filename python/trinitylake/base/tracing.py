"""Spans of OpenTelemetry for transactions, statements, scans and commits.

OpenTelemetry's API is used only if the process has already imported it, which every process that exports spans does.
Otherwise, and without a provider of spans, a span costs one look-up.

Attributes follow OpenTelemetry's conventions for databases (`db.…`); others start with `trinitylake.`. They contain
names of objects and numbers, never rows, filters, messages or options.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

if TYPE_CHECKING:
    from opentelemetry import context, trace

Value: TypeAlias = str | int | bool | list[str]
Method = TypeVar("Method", bound=Callable[..., Any])


class Span:
    """A span of OpenTelemetry. Without OpenTelemetry its methods do nothing."""

    def __init__(self, span: trace.Span | None = None) -> None:
        self._span = span
        self._token: Any = None

    @property
    def is_on(self) -> bool:
        """Whether the span is recorded and has not ended. If it is not, a caller need not compute attributes."""
        return self._span is not None

    def set(self, name: str, value: Value) -> None:
        if self._span is not None:
            self._span.set_attribute(name, value)

    def part(self, operation: str) -> AbstractContextManager[Span]:
        """Context manager with a span whose parent is this span, not the current span."""
        return _NO_PART if self._span is None else self._part(operation, self._span)

    @contextmanager
    def _part(self, operation: str, whole: trace.Span) -> Iterator[Span]:
        from opentelemetry import trace

        with span(operation, within=trace.set_span_in_context(whole)) as inner:
            yield inner

    def enter(self) -> None:
        """Make this the current span until `leave`."""
        if self._span is not None:
            from opentelemetry import context, trace

            self._token = context.attach(trace.set_span_in_context(self._span))

    def leave(self) -> None:
        """Restore the previous current span."""
        if self._token is not None:
            from opentelemetry import context

            token, self._token = self._token, None
            context.detach(token)

    def end(self, error: BaseException | None = None) -> None:
        """End the span, and record `error` in it. Further calls do nothing."""
        if self._span is not None:
            if error is not None:
                _fail(self._span, error)
            self._span.end()
            self._span = None


#: Shared, because it has no state.
_NO_PART: AbstractContextManager[Span] = nullcontext(Span())


def begin(operation: str, collection: str = "", attributes: Callable[[], Mapping[str, Value]] | None = None) -> Span:
    """Begin a span that ends with `Span.end`. `attributes` is called only if the span is recorded."""
    tracer = _tracer()
    if tracer is None:
        return Span()
    return Span(tracer.start_span(**_description(operation, collection, attributes() if attributes else None)))


@contextmanager
def span(operation: str, collection: str = "", *, within: context.Context | None = None) -> Iterator[Span]:
    """Context manager with a span, which is the current span inside the block.

    Args:
        operation: name of the operation, such as "append".
        collection: full name of the table of the operation.
        within: context whose span is the parent; by default the current span is the parent.
    """
    tracer = _tracer()
    if tracer is None:
        yield Span()
        return
    described = _description(operation, collection)
    # `_fail` records type and message of an error; the SDK would add a second copy.
    with tracer.start_as_current_span(
        **described, context=within, record_exception=False, set_status_on_exception=False
    ) as current:
        try:
            yield Span(current)
        except Exception as error:
            _fail(current, error)
            raise


def traced(operation: str) -> Callable[[Method], Method]:
    """Decorator that creates a span for each call of a method; the object needs an attribute `name`."""

    def decorate(method: Method) -> Method:
        @functools.wraps(method)
        def run(self: Any, *args: Any, **kwargs: Any) -> Any:
            if _tracer() is None:
                return method(self, *args, **kwargs)
            with span(operation, self.name):
                return method(self, *args, **kwargs)

        return run  # type: ignore[return-value]

    return decorate


def _tracer() -> trace.Tracer | None:
    # If another thread is importing the module at this moment, the module lacks the function.
    get_provider = getattr(sys.modules.get("opentelemetry.trace"), "get_tracer_provider", None)
    return None if get_provider is None else _tracer_of(get_provider())


@functools.lru_cache(maxsize=1)
def _tracer_of(provider: trace.TracerProvider) -> trace.Tracer | None:
    """The tracer of a provider; None if spans would be lost. Cached by provider, because creating a tracer is slow."""
    tracer = provider.get_tracer("trinitylake")
    # Without a provider, the tracer is a proxy, whose spans cost time and are lost.
    return None if type(tracer).__name__ == "ProxyTracer" else tracer


def _description(operation: str, collection: str, attributes: Mapping[str, Value] | None = None) -> dict[str, Any]:
    described: dict[str, Value] = {
        "db.system.name": "trinitylake",
        "db.operation.name": operation,
        **(attributes or {}),
    }
    if collection:
        described["db.collection.name"] = collection
    return {"name": f"{operation} {collection}".rstrip(), "attributes": described}


def _fail(span: trace.Span, error: BaseException) -> None:
    from opentelemetry.trace import Status, StatusCode

    kind = getattr(error, "kind", None)
    span.set_attribute("error.type", kind if isinstance(kind, str) else type(error).__qualname__)
    span.set_status(Status(StatusCode.ERROR, str(error)))
