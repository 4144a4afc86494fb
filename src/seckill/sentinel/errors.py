"""What the engine raises.

::

    Exception
    ├── BlockException              a call was refused; a value as much as an exception
    │   ├── FlowException           by a flow rule
    │   ├── DegradeException        by an open circuit breaker
    │   ├── SystemBlockException    by system protection
    │   ├── AuthorityException      by an authority rule
    │   └── ParamFlowException      by a hot-parameter rule
    └── SentinelError               something is wrong with the use of the engine
        ├── ErrorEntryFreeException an entry was ended twice, or not in turn
        ├── RuleDocumentError       a rule document cannot be read at all
        └── RuleConflict            somebody else changed the rules first; look, and try again

The names are Sentinel's. ``Sentinel.try_entry`` returns a ``BlockException`` as a value; ``with``
raises the same object. It carries what the decision saw, so an operator can tell why.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from seckill.sentinel.rule_set import Rule

BLOCK_TEXT_PREFIX = "SentinelBlockException: "
"""How the original marks a refusal in text that crosses a process boundary."""


class BlockException(Exception):  # noqa: N818  Sentinel's own word, which its users search for
    """A call was refused.

    Attributes:
        resource: name of the resource that was to be entered.
        rule: the rule that refused; None only if a slot of your own raised this.
        rule_limit_app: whom the rule speaks of: a caller, ``default`` or ``other``; for system
            protection the kind of limit (``qps``, ``thread``, ``rt``, ``load``, ``cpu``).
        measured: what was in use when the call came, in the rule's own unit.
        limit: what the rule allowed at that moment, in the same unit.
    """

    kind: ClassVar[str] = "block"

    def __init__(
        self,
        resource: str,
        rule: Rule | None,
        rule_limit_app: str,
        measured: float,
        limit: float,
    ) -> None:
        self.resource = resource
        self.rule = rule
        self.rule_limit_app = rule_limit_app
        self.measured = measured
        self.limit = limit

    def __str__(self) -> str:
        return (
            f"{type(self).__name__}: {self.resource!r} refused by its {self.kind} rule for "
            f"{self.rule_limit_app!r}: measured {self.measured:g}, allowed {self.limit:g}"
        )

    @property
    def wire_text(self) -> str:
        """The text by which a remote Sentinel recognises a refusal."""
        return BLOCK_TEXT_PREFIX + type(self).__name__


class FlowException(BlockException):
    """Refused by a flow rule. Measured and limit are calls per second, or calls in flight."""

    kind = "flow"


class DegradeException(BlockException):
    """Refused by an open circuit breaker. Measured is what opened it, limit its threshold."""

    kind = "degrade"


class SystemBlockException(BlockException):
    """Refused by system protection. ``rule_limit_app`` names which of its limits."""

    kind = "system"

    @property
    def limit_type(self) -> str:
        """Which limit was over: ``qps``, ``thread``, ``rt``, ``load`` or ``cpu``."""
        return self.rule_limit_app


class AuthorityException(BlockException):
    """Refused by an authority rule. ``origin`` is the caller that was not let in."""

    kind = "authority"

    def __init__(self, resource: str, rule: Rule, rule_limit_app: str, origin: str) -> None:
        super().__init__(resource, rule, rule_limit_app, 1, 0)
        self.origin = origin


class ParamFlowException(BlockException):
    """Refused by a hot-parameter rule. ``parameter`` is the value that was too hot, as text."""

    kind = "param-flow"

    def __init__(
        self,
        resource: str,
        rule: Rule,
        rule_limit_app: str,
        measured: float,
        limit: float,
        parameter: str,
    ) -> None:
        super().__init__(resource, rule, rule_limit_app, measured, limit)
        self.parameter = parameter


class SentinelError(Exception):
    """Something is wrong with the use of the engine; never a refusal."""


class ErrorEntryFreeException(SentinelError):  # noqa: N818  Sentinel's own word
    """An entry was ended twice, entered twice, or ended before an entry inside it.

    In the last case the entries inside were ended first, then the entry itself: the counters are
    right and only the order of the calls is wrong.
    """


class RuleDocumentError(SentinelError):
    """A rule document is not a list of rules: too large, too deep, not JSON, of another shape.

    Attributes:
        field: where in the document, as a path; ``$`` is the whole.
        reason: what is wrong there, and what would be right.
    """

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason


class RuleConflict(SentinelError):  # noqa: N818  reads as what it is
    """Rules were changed since the version that a change was made from. Nothing was changed.

    Attributes:
        kind: which rules.
        made_from: the version that the change was made from; 0 is none.
        head: the version in force; 0 is none.
    """

    def __init__(self, kind: str, made_from: int, head: int, who: str) -> None:
        super().__init__(
            f"the {kind} rules were changed by {who or 'somebody'} since version {made_from}: "
            f"version {head} is in force. Look at it, and make the change again from there"
        )
        self.kind = kind
        self.made_from = made_from
        self.head = head
