"""The engine: resources, their slots, their counters, and the rules, in one object.

Nothing is global. Make one ``Sentinel`` per process, give it its clock, load rules, and put entries
around what is to be protected. Several may live side by side, as they do in tests.
"""

from __future__ import annotations

import contextlib
import threading
import time
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

from seckill.sentinel.authority.manager import AuthorityRuleManager
from seckill.sentinel.authority.slot import AuthoritySlot
from seckill.sentinel.circuitbreaking.manager import DegradeRuleManager
from seckill.sentinel.circuitbreaking.slot import DefaultCircuitBreakerSlot, DegradeSlot
from seckill.sentinel.clock import NANOSECONDS_PER_S, SystemClock
from seckill.sentinel.context import Context
from seckill.sentinel.decorator import sentinel_resource
from seckill.sentinel.entry import Entry, EntryState, entry_maker, say_how
from seckill.sentinel.errors import RuleConflict
from seckill.sentinel.flow.manager import FlowRuleManager
from seckill.sentinel.flow.slot import FlowSlot
from seckill.sentinel.hotparam.manager import ParamFlowRuleManager
from seckill.sentinel.hotparam.slot import ParamFlowSlot
from seckill.sentinel.node import ClusterNode, DefaultNode, EntranceNode, StatisticNode
from seckill.sentinel.present import Present, one_step_stretches
from seckill.sentinel.rule_set import RESOURCE_LENGTH_MAX
from seckill.sentinel.rule_store import NOBODY
from seckill.sentinel.rules import KINDS, format_rules, kind_named, parse_rules
from seckill.sentinel.settings import Difference, Settings
from seckill.sentinel.slot import SlotOrder
from seckill.sentinel.system.manager import SystemRuleManager
from seckill.sentinel.system.slot import SystemSlot
from seckill.sentinel.system.status import HostStatus
from seckill.sentinel.waiting import SystemWaiter
from seckill.sentinel.words import (
    CONTEXT_DEFAULT,
    CONTEXT_SURPLUS,
    ORIGIN_SURPLUS,
    EntryType,
    ResourceType,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from seckill.sentinel.clock import Clock
    from seckill.sentinel.errors import BlockException
    from seckill.sentinel.reports import LoadReport
    from seckill.sentinel.rule_set import RuleManager
    from seckill.sentinel.rule_store import Change, RuleStore
    from seckill.sentinel.rules import AnyRule, ParsedRules
    from seckill.sentinel.slot import Slot
    from seckill.sentinel.system.status import SystemStatus
    from seckill.sentinel.token_source import TokenSource
    from seckill.sentinel.waiting import Waiter

BLOCK_KEY_COUNT_MAX: Final = 20_000
"""Kinds of refusals counted apart; the rest is counted together under an empty resource."""

P = ParamSpec("P")
T = TypeVar("T")

_OUT = EntryType.OUT
_COMMON = ResourceType.COMMON


@dataclass(slots=True)
class Alarms:
    """What ran over a bound, or went wrong inside. Each is a count since the start, for metrics.

    Attributes:
        unchecked_entries: entries of resources beyond ``resource_count_max``: passed unchecked.
        surplus_contexts: entries of contexts beyond ``context_count_max``: they share one.
        surplus_origins: entries of callers beyond ``origin_count_max``: they share one counter.
        surplus_nodes: entries beyond ``node_count_max``: counted for their resource only.
        internal_errors: faults inside the engine; the call went on as if the check had passed.
        listener_errors: faults in listeners.
        last_error: the latest of either, for the log.
    """

    unchecked_entries: int = 0
    surplus_contexts: int = 0
    surplus_origins: int = 0
    surplus_nodes: int = 0
    internal_errors: int = 0
    listener_errors: int = 0
    last_error: Exception | None = None


class Sentinel:
    """A flow-control engine.

    Args:
        settings: bounds, and what differs from the original.
        clock: where time comes from; default the machine's.
        waiter: how a paced call waits; default really.
        status: load and CPU for system rules; default this machine's.
        token_source: tokens for rules in cluster mode; without one they fall back.
        rule_store: where rules are kept; what it holds is in force when this returns.

    Raises:
        Exception: whatever the store raises when it cannot be read. A process that starts without
            its rules would let everything in.

    Attributes:
        flow, degrade, system, authority, param_flow: the rules of each kind.
        restored: what became of the rules of the store, by kind.
        inbound: counters of all entries of type ``IN`` together.
        alarms: what ran over a bound.
        blocks: refusals since the start by (kind, resource, limitApp); for metrics.
        traces: which exceptions count as failures; default all.
        lock: held for every decision and every change. Hold it to read several counters as of one
            instant, and briefly.
    """

    def __init__(
        self,
        *,
        settings: Settings | None = None,
        clock: Clock | None = None,
        waiter: Waiter | None = None,
        status: SystemStatus | None = None,
        token_source: TokenSource | None = None,
        rule_store: RuleStore | None = None,
    ) -> None:
        self.settings = settings = Settings() if settings is None else settings
        self.clock: Clock = SystemClock() if clock is None else clock
        self.waiter: Waiter = SystemWaiter() if waiter is None else waiter
        entrance = EntranceNode(CONTEXT_DEFAULT)
        outside = Context(entrance, "")
        self.current: ContextVar[Context | Entry] = ContextVar("sentinel_current", default=outside)
        # Of the system's clock the same as its own, without the calls in between.
        system = self.clock if isinstance(self.clock, SystemClock) else None
        self.lock = Present(
            self,
            tick_ns=self.clock.now_ns if system is None else time.monotonic_ns,
            offset_ns=0 if system is None else system.offset_ns,
            tick=None if system is None else time.monotonic,
            per_ns=1 / NANOSECONDS_PER_S,
            bucket_ns=NANOSECONDS_PER_S // settings.sample_count,
            find=self.current.get,
            put=self.current.set,
            locks_always=not one_step_stretches(),
        )
        if not TYPE_CHECKING:
            # A method would be a second call for nothing: making an entry is all it does.
            self.entry = entry_maker(self.lock)
        self._enabled = True
        self.borrowers_skip_checks = not settings.differs(Difference.PRIORITY_WAIT_IS_CHECKED)
        self.alarms = Alarms()
        self.blocks: dict[tuple[str, str, str], int] = {}
        self.traces: Callable[[Exception], bool] = _trace_all
        self.notices: list[Callable[[], None]] = []
        self.block_listeners: list[Callable[[Entry, BlockException], None]] = []
        self.inbound = self.lock.inbound = self._new_statistic()
        self._resources: dict[str, ClusterNode] = {}
        self._contexts: dict[str, EntranceNode] = {}
        self._node_count = 0
        self._contexts[CONTEXT_DEFAULT] = entrance
        self.flow = FlowRuleManager(
            settings=settings,
            lock=self.lock,
            changed=self._rules_changed,
            find_node=self._resources.get,
            token_source=token_source,
        )
        self.degrade = DegradeRuleManager(
            settings=settings, lock=self.lock, changed=self._rules_changed, notices=self.notices
        )
        self.system = SystemRuleManager(
            settings=settings,
            lock=self.lock,
            changed=self._rules_changed,
            inbound=self.inbound,
            status=HostStatus() if status is None else status,
        )
        self.authority = AuthorityRuleManager(
            settings=settings, lock=self.lock, changed=self._rules_changed
        )
        self.param_flow = ParamFlowRuleManager(
            settings=settings,
            lock=self.lock,
            changed=self._rules_changed,
            token_source=token_source,
        )
        self._slots: list[Slot] = sorted(
            (
                AuthoritySlot(self.authority),
                SystemSlot(self.system),
                ParamFlowSlot(self.param_flow),
                FlowSlot(self.flow),
                DefaultCircuitBreakerSlot(self.degrade),
                DegradeSlot(self.degrade),
            ),
            key=lambda slot: slot.order,
        )
        self._rule_store = rule_store
        # Held over loading and saving, so that what is stored is what was put in force last.
        self._rule_lock = threading.Lock()
        self.restored: dict[str, LoadReport] = {}
        for kind in KINDS:
            self.restore_rules(kind)

    # Entering.

    if TYPE_CHECKING:

        def entry(
            self,
            name: str,
            *args: object,
            count: int = 1,
            entry_type: EntryType = _OUT,
            resource_type: int = _COMMON,
            prioritized: bool = False,
        ) -> Entry:
            """Make an entry of a resource, to be entered by ``with`` or ``async with``.

            Args:
                name: of the resource. Use names of routes and operations, not of single things:
                    each name costs memory for good.
                args: values for hot-parameter rules.
                count: units that the call acquires.
                entry_type: ``IN`` for requests that come from outside; system rules see only those.
                resource_type: what the resource stands for, for the dashboard.
                prioritized: may borrow from the next moment rather than be refused.

            Raises:
                ValueError: the count is negative: it would give units back that nobody took.
            """

    def try_entry(
        self,
        name: str,
        *args: object,
        count: int = 1,
        entry_type: EntryType = _OUT,
        resource_type: int = _COMMON,
        prioritized: bool = False,
    ) -> Entry | BlockException:
        """Enter a resource, with the refusal as a value. End an ``Entry`` by ``exit``."""
        entry = self.entry(name, *args)
        say_how(entry, count, entry_type, resource_type, prioritized)
        outcome = entry.decide()
        while isinstance(outcome, int):
            self.waiter.wait(outcome)
            outcome = entry.decide()
        return entry if outcome is None else outcome

    async def try_entry_async(
        self,
        name: str,
        *args: object,
        count: int = 1,
        entry_type: EntryType = _OUT,
        resource_type: int = _COMMON,
        prioritized: bool = False,
    ) -> Entry | BlockException:
        """``try_entry`` for coroutines: a paced call yields to the loop while it waits."""
        entry = self.entry(name, *args)
        say_how(entry, count, entry_type, resource_type, prioritized)
        outcome = entry.decide()
        while isinstance(outcome, int):
            await self.waiter.wait_async(outcome)
            outcome = entry.decide()
        return entry if outcome is None else outcome

    @contextlib.contextmanager
    def context(self, name: str, origin: str = "") -> Iterator[Context]:
        """Enter a named context on behalf of a caller, for all entries inside the block.

        Args:
            name: of the entrance; chain rules and the call tree go by it. A few per service.
            origin: the caller's name, for authority rules and rules with a limitApp.

        Raises:
            ValueError: the name is the default context's.
        """
        if name == CONTEXT_DEFAULT:
            raise ValueError(f"{CONTEXT_DEFAULT!r} is the context of those who name none")
        context = Context(self._entrance_for(name), origin)
        token = self.current.set(context)
        try:
            yield context
        finally:
            # A generator may be finished in another task than it began in: then there is nothing to
            # undo.
            with contextlib.suppress(ValueError):
                self.current.reset(token)

    def resource(
        self,
        name: str = "",
        *,
        entry_type: EntryType = _OUT,
        resource_type: int = _COMMON,
        block_handler: Callable[..., object] | None = None,
        fallback: Callable[..., object] | None = None,
        exceptions_to_ignore: tuple[type[Exception], ...] = (),
    ) -> Callable[[Callable[P, T]], Callable[P, T]]:
        """Decorate a function or a coroutine function as a resource; see ``sentinel_resource``."""
        return sentinel_resource(
            self,
            name,
            entry_type=entry_type,
            resource_type=resource_type,
            block_handler=block_handler,
            fallback=fallback,
            exceptions_to_ignore=exceptions_to_ignore,
        )

    def trace(self, error: BaseException) -> None:
        """Count the innermost open entry as failed: for errors handled inside the block."""
        innermost = self.current.get()
        while isinstance(innermost, Entry) and innermost.state is EntryState.ENDED:
            innermost = innermost.parent
        if isinstance(innermost, Entry):
            innermost.set_error(error)

    # Looking.

    @property
    def enabled(self) -> bool:
        """Whether entries are checked and counted; False switches everything off."""
        return self._enabled

    @enabled.setter
    def enabled(self, enabled: bool) -> None:
        with self.lock:
            self._enabled = enabled
            for entrance in self._contexts.values():
                entrance.known.clear()

    @property
    def resources(self) -> dict[str, ClusterNode]:
        """The node of every resource seen so far, by name. A copy."""
        with self.lock:
            return dict(self._resources)

    @property
    def entrances(self) -> dict[str, EntranceNode]:
        """Every context seen so far, by name: the children of the call tree's root. A copy."""
        with self.lock:
            return dict(self._contexts)

    def node(self, name: str) -> ClusterNode | None:
        """The node of one resource; None if it has not been entered yet."""
        return self._resources.get(name)

    # Rules as text.

    def load_rules(self, kind: str, document: bytes | str, change: Change = NOBODY) -> LoadReport:
        """Put the rules of a document in force in place of all of the kind, and have them kept.

        Args:
            kind: ``flow``, ``degrade``, ``system``, ``authority`` or ``param-flow``, in any
                spelling.
            document: JSON, see ``rules``.
            change: who wants it and why, for the store.

        Returns:
            What was done, rule by rule; bad rules are named and the others taken.

        Raises:
            RuleConflict: the store says that another changed them since ``change.made_from``; the
                old rules stay.
            RuleDocumentError: the document cannot be read at all; the old rules stay.
            ValueError: no kind of rules is called so.
        """
        parsed = parse_rules(kind, document)
        with self._rule_lock:
            before = self.dump_rules(parsed.kind)
            report = self._load(parsed)
            if self._rule_store is None or not report.applied:
                return report
            try:
                self._rule_store.save(report.kind, self.dump_rules(report.kind), change)
            except RuleConflict:
                self._load(parse_rules(parsed.kind, before))
                raise
            except Exception as error:  # noqa: BLE001  whatever a store raises, the rules are in force
                self.note_internal_error(error)
                return replace(report, saved=False)
            return replace(report, saved=True)

    def restore_rules(self, kind: str) -> LoadReport | None:
        """Put in force what the store holds: at the start, and when another has changed it.

        Returns:
            What was done, rule by rule; None without a store, or when it holds nothing of the kind.

        Raises:
            Exception: whatever the store raises when it cannot be read.
            ValueError: no kind of rules is called so.
        """
        name = kind_named(kind)
        if self._rule_store is None:
            return None
        with self._rule_lock:
            document = self._rule_store.load(name)
            if document is None:
                return None
            report = self._load(parse_rules(name, document))
            self.restored[name] = report
            return report

    def dump_rules(self, kind: str) -> str:
        """The rules of a kind that are in force, as JSON.

        Raises:
            ValueError: no kind of rules is called so.
        """
        name = kind_named(kind)
        if name == self.system.kind:
            return format_rules(name, self.system.limits.rules())
        rules: Sequence[AnyRule]
        match name:
            case self.flow.kind:
                rules = self.flow.rules
            case self.degrade.kind:
                rules = self.degrade.rules
            case self.authority.kind:
                rules = self.authority.rules
            case _:
                rules = self.param_flow.rules
        return format_rules(name, rules)

    def _load(self, parsed: ParsedRules) -> LoadReport:
        manager: RuleManager[Any] = {
            one.kind: one
            for one in (self.flow, self.degrade, self.system, self.authority, self.param_flow)
        }[parsed.kind]
        return manager.load(
            parsed.rules,
            indices=parsed.indices,
            refused=parsed.refused,
            warnings=parsed.warnings,
        )

    # Setting up.

    def add_slot(self, slot: Slot) -> None:
        """Put a slot of your own into the chain.

        Raises:
            ValueError: its order is not above ``SlotOrder.STATISTIC``: what it refuses would not
                count.
        """
        if slot.order <= SlotOrder.STATISTIC:
            raise ValueError(f"the order of a slot is above {SlotOrder.STATISTIC}: {slot.order}")
        with self.lock:
            self._slots = sorted((*self._slots, slot), key=lambda one: one.order)
            self._rules_changed(None)

    def relink(self) -> None:
        """Ask every slot again what it has to say. For slots of your own whose rules changed."""
        with self.lock:
            self._rules_changed(None)

    # For Entry: the parts of its way that are rare.

    def node_for(self, entry: Entry, parent: Context | Entry) -> DefaultNode | None:
        """The place of an entry in the call tree, made if need be; None: not to be checked."""
        if not self.enabled:
            return None
        name = entry.name
        if len(name) > RESOURCE_LENGTH_MAX:
            name = name[:RESOURCE_LENGTH_MAX]
        context = parent.context
        with self.lock:
            node = context.nodes.get(name)
            if node is not None:
                return node
            cluster = self._resources.get(name)
            if cluster is None:
                cluster = self._new_resource(name, entry.resource_type)
            if cluster is None:
                self.alarms.unchecked_entries += 1
                return None
            if cluster.contexts and self._node_count >= self.settings.node_count_max:
                self.alarms.surplus_nodes += 1
                return next(iter(cluster.contexts.values()))
            node = DefaultNode(cluster, context.name)
            self._node_count += 1
            if cluster.contexts:
                # Until now the only context's counts were the resource's: from here they part.
                for other in cluster.contexts.values():
                    if other.own is None:
                        other.own = cluster.copy()
                node.own = self._new_statistic()
            cluster.contexts[context.name] = node
            cluster.aim()
            context.nodes[name] = node
            parent.children[name] = node
            return node

    def note_known(self, node: DefaultNode, context: Context) -> None:
        """Let the next call find the resource at once, if it may go the short way at all."""
        with self.lock:
            if self._enabled and node.cluster.limit >= 0:
                context.known[node.name] = node.cluster
            else:
                context.known.pop(node.name, None)

    def origin_node(self, cluster: ClusterNode, origin: str) -> StatisticNode:
        """The counters of one caller of one resource, made if need be."""
        found = cluster.origins.get(origin)
        if found is not None:
            return found
        with self.lock:
            if len(cluster.origins) >= self.settings.origin_count_max:
                self.alarms.surplus_origins += 1
                origin = ORIGIN_SURPLUS
            return cluster.origins.setdefault(origin, self._new_statistic())

    def note_internal_error(self, error: Exception) -> None:
        """Count a fault of the engine's own."""
        self.alarms.internal_errors += 1
        self.alarms.last_error = error

    def count_block(self, block: BlockException) -> None:
        """Count a refusal by what refused it. Under the lock."""
        key = (block.kind, block.resource, block.rule_limit_app)
        blocks = self.blocks
        if key in blocks:
            blocks[key] += 1
        elif len(blocks) < BLOCK_KEY_COUNT_MAX:
            blocks[key] = 1
        else:
            surplus = (block.kind, "", "")
            blocks[surplus] = blocks.get(surplus, 0) + 1

    def tell_block(self, entry: Entry, block: BlockException) -> None:
        """Tell the listeners of a refusal, outside the lock."""
        for listener in self.block_listeners:
            self._tell(partial(listener, entry, block))

    def tell_notices(self) -> None:
        """Tell what was noted under the lock to those who asked for it, now that it is free."""
        with self.lock:
            notices = self.notices[:]
            del self.notices[:]
        for notice in notices:
            self._tell(notice)

    def _tell(self, notice: Callable[[], None]) -> None:
        try:
            notice()
        except Exception as error:  # noqa: BLE001  a listener must not stop the caller it hears of
            self.alarms.listener_errors += 1
            self.alarms.last_error = error

    def _entrance_for(self, name: str) -> EntranceNode:
        found = self._contexts.get(name)
        if found is not None:
            return found
        with self.lock:
            if len(self._contexts) >= self.settings.context_count_max:
                self.alarms.surplus_contexts += 1
                name = CONTEXT_SURPLUS
            return self._contexts.setdefault(name, EntranceNode(name))

    def _new_resource(self, name: str, resource_type: int) -> ClusterNode | None:
        if len(self._resources) >= self.settings.resource_count_max and not self._is_named(name):
            return None
        cluster = ClusterNode(
            name,
            resource_type,
            self.settings.sample_count,
            self.settings.max_rt_ms,
            self.lock,
            slides=self.settings.differs(Difference.SLIDING_WINDOW),
        )
        self._resources[name] = cluster
        self._link(cluster)
        return cluster

    def _is_named(self, name: str) -> bool:
        """Whether a rule is for this very resource: such a one is let in over the bound."""
        return any(
            manager.names(name)
            for manager in (self.flow, self.degrade, self.authority, self.param_flow)
        )

    def _new_statistic(self) -> StatisticNode:
        return StatisticNode(self.settings.sample_count, self.settings.max_rt_ms, self.lock)

    def _link(self, cluster: ClusterNode) -> None:
        cluster.link([slot.links(cluster) for slot in self._slots])

    def _rules_changed(self, names: frozenset[str] | None) -> None:
        concerned: Sequence[ClusterNode | None]
        if names is None:
            concerned = list(self._resources.values())
        else:
            concerned = [self._resources.get(name) for name in names]
        for cluster in concerned:
            if cluster is not None:
                self._link(cluster)


def _trace_all(_error: Exception) -> bool:
    return True
