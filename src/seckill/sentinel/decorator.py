"""Functions as resources: what ``@SentinelResource`` is in Java.

``@sentinel_resource(sentinel, "name", block_handler=..., fallback=...)`` puts an entry around every
call of a function or a coroutine function. Its positional arguments are the entry's args, so
hot-parameter rules can look at them.
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
        block_handler: called in place of the function when the call is refused, with the same
            arguments and the ``BlockException`` behind them. Without one ``fallback`` is asked,
            else it is raised.
        fallback: called when the function raised, with the same arguments and the exception behind
            them. Also for refusals, if there is no ``block_handler``.
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
        first = next(iter(self._signature.parameters), "")
        # What a method is bound to is no argument that a rule could mean.
        self._skipped = 1 if first in _BOUND_NAMES else 0

    def call(
        self, function: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        entry = self._sentinel.try_entry(
            self._name,
            *self._values(args, kwargs),
            entry_type=self._entry_type,
            resource_type=self._resource_type,
        )
        if isinstance(entry, BlockException):
            return self._refused(entry, args, kwargs)
        try:
            return function(*args, **kwargs)
        except BaseException as error:
            if not self._to_be_handled(error):
                raise
            entry.set_error(error)
            if self._fallback is None or not isinstance(error, Exception):
                raise
            return self._fallback(*args, error, **kwargs)
        finally:
            entry.exit()

    async def call_async(
        self,
        function: Callable[..., Awaitable[object]],
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> object:
        entry = await self._sentinel.try_entry_async(
            self._name,
            *self._values(args, kwargs),
            entry_type=self._entry_type,
            resource_type=self._resource_type,
        )
        if isinstance(entry, BlockException):
            return await _finished(self._refused(entry, args, kwargs))
        try:
            return await function(*args, **kwargs)
        except BaseException as error:
            if not self._to_be_handled(error):
                raise
            entry.set_error(error)
            if self._fallback is None or not isinstance(error, Exception):
                raise
            return await _finished(self._fallback(*args, error, **kwargs))
        finally:
            entry.exit()

    def _to_be_handled(self, error: BaseException) -> bool:
        return not isinstance(error, (*self._ignored, BlockException))

    def _refused(
        self, block: BlockException, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        handler = self._block_handler or self._fallback
        if handler is None:
            raise block
        return handler(*args, block, **kwargs)

    def _values(self, args: tuple[object, ...], kwargs: dict[str, object]) -> tuple[object, ...]:
        """The arguments in the order of the signature, however they were given."""
        if kwargs:
            try:
                bound = self._signature.bind(*args, **kwargs)
            except TypeError:
                # The function itself will say so, and better.
                return args[self._skipped :]
            bound.apply_defaults()
            args = bound.args
        return args[self._skipped :]


async def _finished(outcome: object) -> object:
    return await outcome if inspect.isawaitable(outcome) else outcome
