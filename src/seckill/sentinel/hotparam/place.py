"""Which argument of a call a hot-parameter rule looks at."""

from __future__ import annotations

from seckill.sentinel.hotparam.keys import ParamFlowArgument


class ArgumentPlace:
    """A place among the arguments.

    Args:
        index: from 0; below 0 counts from the end.
        fixed: an index from the end is fixed at the first call that is seen, as the original does,
            so that a later call with another number of arguments is judged by a wrong one.
    """

    __slots__ = ("_fixed", "_index")

    def __init__(self, index: int, *, fixed: bool) -> None:
        self._index = index
        self._fixed = fixed and index < 0

    def value_of(self, args: tuple[object, ...]) -> object:
        """The argument, or what it wants to be counted by; None if there is none."""
        index = self._index
        count = len(args)
        if self._fixed:
            self._fixed = False
            self._index = index = index + count if -index <= count else -index
        if not -count <= index < count:
            return None
        argument = args[index]
        kind = type(argument)
        if kind is str or kind is int:
            # The usual ones; asking for a method takes ten times as long.
            return argument
        if isinstance(argument, ParamFlowArgument):
            return argument.param_flow_key()
        return argument
