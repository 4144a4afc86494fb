"""Functions as resources: what ``@SentinelResource`` is in Java.

``@sentinel_resource(sentinel, "name", block_handler=..., fallback=...)`` puts an entry around every
call of a function or a coroutine function. The values of its positional parameters are the entry's
args, so hot-parameter rules can look at them: however they were given, and also if they were left
out, because a default value is a value as any other.

Source: SentinelResourceAspect of sentinel-annotation-aspectj 1.8.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, ParamSpec, TypeVar, cast

from seckill.sentinel.errors import BlockException
from seckill.sentinel.words import EntryType, ResourceType

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from seckill.sentinel.engine import Sentinel

P = ParamSpec("P")
T = TypeVar("T")

_BOUND_NAMES = frozenset({"self", "cls"})
_POSITIONAL = frozenset(
    {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}
)


def sentinel_resource(
    sentinel: Sentinel,
    name: str = "",
    *,
    entry_type: EntryType = EntryType.OUT,
    resource_type: int = ResourceType.COMMON,
    block_handler: Callable[..., object] | None = None,
    fallback: Callable[..., object] | None = None,
    exceptions_to_ignore: tuple[type[Exception], ...] = (),
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Make a function a resource.

    Args:
        sentinel: the engine.
        name: of the resource; default the function's module and qualified name.
        entry_type: which way the traffic flows.
        resource_type: what it stands for.
        block_handler: called in place of the function when the call is refused, or when a refusal
            of something inside it comes out of it. It has the function's parameters, and the
            ``BlockException`` behind the positional ones: these are always all given to it, by
            position, and those by keyword only if the caller gave them. Without one ``fallback`` is
            asked, else it is raised.
        fallback: called in the same way when the function raised, with the exception. Also for
            refusals, if there is no ``block_handler``.
        exceptions_to_ignore: neither counted as failures nor given to ``fallback``.

    Returns:
        The decorator. A handler of a coroutine function may be one itself, or not.

    Raises:
        TypeError: the function is a generator: it would have ended before it began.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(f"{function!r} is a generator; put an entry inside it instead")
        guard = _Guard(
            sentinel,
            function,
            name or f"{function.__module__}.{function.__qualname__}",
            entry_type,
            resource_type,
            block_handler,
            fallback,
            exceptions_to_ignore,
        )
        if inspect.iscoroutinefunction(function):
            coroutine = cast("Callable[P, Awaitable[object]]", function)

            @functools.wraps(function)
            async def guarded_async(*args: P.args, **kwargs: P.kwargs) -> object:
                return await guard.call_async(coroutine, args, kwargs)

            return cast("Callable[P, T]", guarded_async)

        @functools.wraps(function)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> T:
            return cast("T", guard.call(function, args, kwargs))

        return guarded

    return decorate


class _Guard:
    """One guarded function."""

    def __init__(
        self,
        sentinel: Sentinel,
        function: Callable[..., object],
        name: str,
        entry_type: EntryType,
        resource_type: int,
        block_handler: Callable[..., object] | None,
        fallback: Callable[..., object] | None,
        ignored: tuple[type[Exception], ...],
    ) -> None:
        self._sentinel = sentinel
        self._name = name
        self._entry_type = entry_type
        self._resource_type = resource_type
        self._block_handler = block_handler
        self._fallback = fallback
        self._ignored = ignored
        self._signature = inspect.signature(function)
        parameters = self._signature.parameters.values()
        self._positional_count = sum(one.kind in _POSITIONAL for one in parameters)
        first = next(iter(self._signature.parameters), "")
        # What a method is bound to is no argument that a rule could mean.
        self._skipped = 1 if first in _BOUND_NAMES else 0

    def call(
        self, function: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        values, named = self._in_order(args, kwargs)
        entry = self._sentinel.try_entry(
            self._name,
            *values[self._skipped :],
            entry_type=self._entry_type,
            resource_type=self._resource_type,
        )
        if isinstance(entry, BlockException):
            return self._refused(entry, values, named)
        try:
            return function(*args, **kwargs)
        except BlockException as block:
            return self._refused(block, values, named)
        except BaseException as error:
            if not self._to_be_handled(error):
                raise
            entry.set_error(error)
            if self._fallback is None or not isinstance(error, Exception):
                raise
            return self._fallback(*values, error, **named)
        finally:
            entry.exit()

    async def call_async(
        self,
        function: Callable[..., Awaitable[object]],
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> object:
        values, named = self._in_order(args, kwargs)
        entry = await self._sentinel.try_entry_async(
            self._name,
            *values[self._skipped :],
            entry_type=self._entry_type,
            resource_type=self._resource_type,
        )
        if isinstance(entry, BlockException):
            return await _finished(self._refused(entry, values, named))
        try:
            return await function(*args, **kwargs)
        except BlockException as block:
            return await _finished(self._refused(block, values, named))
        except BaseException as error:
            if not self._to_be_handled(error):
                raise
            entry.set_error(error)
            if self._fallback is None or not isinstance(error, Exception):
                raise
            return await _finished(self._fallback(*values, error, **named))
        finally:
            entry.exit()

    def _to_be_handled(self, error: BaseException) -> bool:
        return not isinstance(error, self._ignored)

    def _refused(
        self, block: BlockException, values: tuple[object, ...], named: dict[str, object]
    ) -> object:
        handler = self._block_handler or self._fallback
        if handler is None:
            raise block
        return handler(*values, block, **named)

    def _in_order(
        self, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> tuple[tuple[object, ...], dict[str, object]]:
        """The values of all positional parameters, in their order, and the others by name."""
        if not kwargs and len(args) >= self._positional_count:
            return args, kwargs
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError:
            # The function itself will say so, and better.
            return args, kwargs
        bound.apply_defaults()
        return bound.args, {name: kwargs[name] for name in bound.kwargs if name in kwargs}


async def _finished(outcome: object) -> object:
    return await outcome if inspect.isawaitable(outcome) else outcome
