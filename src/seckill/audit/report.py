"""What an audit found, as data, as text and as JSON."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from seckill.domain.ids import GoodsId, ReservationId, SaleId, UserId
from seckill.domain.instants import rfc3339_ms
from seckill.domain.reservation import BucketId, Place
from seckill.domain.wording import counted
from seckill.ledger.fences import FenceStatement

__all__ = [
    "COUNTED_AS",
    "IDS_MAX",
    "PROMISES",
    "AuditReport",
    "Finding",
    "Kind",
    "Promise",
    "SaleLine",
    "Subject",
    "Tally",
    "statement_text",
]

IDS_MAX: Final = 20
"""Ids named in one finding; the count beside them is of all that are concerned."""


_STATEMENTS_SHOWN: Final = 5


class Promise(StrEnum):
    """Which promise a finding breaks."""

    NO_OVERSELL = "no oversell"
    NO_DUPLICATE = "no duplicate"
    NO_LOSS = "no loss"
    CONSERVATION = "conservation"
    PROVABLE = "provable"
    """Nothing is known to be broken, and nothing can be proven now."""


class Kind(StrEnum):
    """What is wrong. Each kind is a heading of ``docs/operate/audit.md``."""

    OVERSOLD = "oversold"
    DUPLICATE = "duplicate"
    LOST = "lost"
    LOST_EVENT = "lost_event"
    DEAD_LETTER = "dead_letter"
    COLLISION = "collision"
    STRANDED = "stranded"
    PHANTOM = "phantom"
    UNBALANCED = "unbalanced"
    MISCOUNTED = "miscounted"
    STOCK_DIFFERS = "stock_differs"
    COUNTER = "counter"
    TORN = "torn"
    LEDGER_OLDER = "ledger_older"
    FENCED = "fenced"


PROMISES: Final = {
    Kind.OVERSOLD: Promise.NO_OVERSELL,
    Kind.DUPLICATE: Promise.NO_DUPLICATE,
    Kind.LOST: Promise.NO_LOSS,
    Kind.LOST_EVENT: Promise.NO_LOSS,
    Kind.DEAD_LETTER: Promise.NO_LOSS,
    Kind.COLLISION: Promise.NO_LOSS,
    Kind.STRANDED: Promise.NO_LOSS,
    Kind.PHANTOM: Promise.CONSERVATION,
    Kind.UNBALANCED: Promise.CONSERVATION,
    Kind.MISCOUNTED: Promise.CONSERVATION,
    Kind.STOCK_DIFFERS: Promise.CONSERVATION,
    Kind.COUNTER: Promise.CONSERVATION,
    Kind.TORN: Promise.PROVABLE,
    Kind.LEDGER_OLDER: Promise.NO_LOSS,
    Kind.FENCED: Promise.PROVABLE,
}

COUNTED_AS: Final = {
    Kind.OVERSOLD: "oversold",
    Kind.DUPLICATE: "duplicates",
    Kind.LOST: "lost",
    Kind.DEAD_LETTER: "lost",
    Kind.STRANDED: "stranded",
    Kind.PHANTOM: "stranded",
    Kind.UNBALANCED: "stranded",
    Kind.MISCOUNTED: "stranded",
    Kind.STOCK_DIFFERS: "stranded",
}
"""Which number of the report the units of a kind go into. Units that are not where they should be
are stranded, whether Redis has too many of them or too few. Kinds that are left out say that books
disagree with themselves, or that nothing can be proven: no unit can be laid to their charge."""


@dataclass(frozen=True, slots=True)
class Subject:
    """One thing that a finding is about; what is not known is None."""

    reservation_id: ReservationId | None = None
    user_id: UserId | None = None
    place: Place | None = None
    units: int | None = None
    note: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The known parts; a place reads sale.bucket.epoch.seq."""
        place = self.place
        parts = {
            "reservation_id": self.reservation_id,
            "user_id": self.user_id,
            "place": place and f"{place.sale_id}.{place.bucket}.{place.epoch}.{place.seq}",
            "units": self.units,
            "note": self.note,
        }
        return {name: value for name, value in parts.items() if value is not None}

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.to_dict().items())


@dataclass(slots=True)
class Tally:
    """Subjects counted in full and named up to a bound."""

    units: int = 0
    count: int = 0
    ids: list[Subject] = field(default_factory=list)

    def add(self, subject: Subject) -> None:
        """Count a subject and its units; name it while there is room."""
        self.count += 1
        self.units += subject.units or 0
        if len(self.ids) < IDS_MAX:
            self.ids.append(subject)

    def add_unnamed(self, count: int, units_each: int) -> None:
        """Count subjects that there is no room to name."""
        self.count += count
        self.units += count * units_each


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong.

    Attributes:
        bucket: the bucket it is about; None when it is about the sale.
        units: how many units are concerned.
        count: how many subjects are concerned; ``ids`` names the first `IDS_MAX` of them.
        what: what is wrong, in one or two sentences.
        advice: what to do now.
    """

    kind: Kind
    sale_id: SaleId
    goods_id: GoodsId
    bucket: int | None
    units: int
    count: int
    ids: Sequence[Subject]
    what: str
    advice: str

    @property
    def promise(self) -> Promise:
        """The promise that is broken, or cannot be proven."""
        return PROMISES[self.kind]

    def to_dict(self) -> dict[str, Any]:
        """As JSON shows it."""
        return {
            "kind": self.kind.value,
            "promise": self.promise.value,
            "sale_id": self.sale_id,
            "goods_id": self.goods_id,
            "bucket": self.bucket,
            "units": self.units,
            "count": self.count,
            "ids": [subject.to_dict() for subject in self.ids],
            "what": self.what,
            "advice": self.advice,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SaleLine:
    """Where the units of one sale are: put = left + held, and held = in the ledger + in flight.

    All of Redis' numbers are of one look at each bucket. A sale whose buckets are gone or cannot
    be trusted has None there, and the ledger's numbers still.

    Attributes:
        stock_units: put on sale, as the ledger says.
        live_units: held by live orders, as the ledger says.
        in_flight_units: admitted and not yet written.
        releasing_units: given back by the ledger and not yet by Redis.
    """

    sale_id: SaleId
    goods_id: GoodsId
    closed: bool
    stock_units: int
    live_units: int
    put_units: int | None
    left_units: int | None
    held_units: int | None
    in_flight_units: int
    releasing_units: int
    buyers: int | None

    def to_dict(self) -> dict[str, Any]:
        """As JSON shows it."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """The outcome of one audit.

    Attributes:
        started_at_ms: when it began (UTC epoch milliseconds).
        accounted: what was lost or collided once and is settled: named, told to its buyers, and
            part of a statement. No finding.
        statements: what happened to buckets that were not trusted, the newest first.
        unproven: buckets about which nothing could be proven.
        unsettled: things that kept moving while they were looked at, and so are neither proven
            right nor wrong; the next audit sees them. Not a finding.
    """

    findings: Sequence[Finding]
    sales: Sequence[SaleLine]
    started_at_ms: int
    duration_ms: int
    accounted: Sequence[Finding] = ()
    statements: Sequence[FenceStatement] = ()
    unproven: Sequence[BucketId] = ()
    unsettled: int = 0

    @property
    def ok(self) -> bool:
        """Whether every promise was proven to be kept."""
        return not self.findings

    def _units(self, number: str) -> int:
        return sum(f.units for f in self.findings if COUNTED_AS.get(f.kind) == number)

    @property
    def oversold(self) -> int:
        """Units sold beyond what was put on sale."""
        return self._units("oversold")

    @property
    def duplicates(self) -> int:
        """Units that users hold beyond the limit per user."""
        return self._units("duplicates")

    @property
    def lost(self) -> int:
        """Units that were promised to a buyer and stand in no log."""
        return self._units("lost")

    @property
    def stranded(self) -> int:
        """Units that are neither left, nor of a live order, nor under way; or are two of these."""
        return self._units("stranded")

    @property
    def in_flight(self) -> int:
        """Units on their way between Redis and the ledger, in either direction. Not a fault."""
        return sum(line.in_flight_units + line.releasing_units for line in self.sales)

    def to_dict(self) -> dict[str, Any]:
        """As ``seckill audit --json`` prints it. The first six names are fixed for scripts."""
        return {
            "ok": self.ok,
            "oversold": self.oversold,
            "duplicates": self.duplicates,
            "lost": self.lost,
            "stranded": self.stranded,
            "in_flight": self.in_flight,
            "findings": [finding.to_dict() for finding in self.findings],
            "accounted": [finding.to_dict() for finding in self.accounted],
            "statements": [statement.to_dict() for statement in self.statements],
            "unproven": len(self.unproven),
            "unsettled": self.unsettled,
            "sales": [line.to_dict() for line in self.sales],
            "started_at_ms": self.started_at_ms,
            "duration_ms": self.duration_ms,
        }

    def to_text(self) -> str:
        """As ``seckill audit`` prints it, for people."""
        lines = [_sale_text(line) for line in self.sales] or ["There is no sale."]
        lines.append("")
        for finding in self.findings:
            lines += [*_finding_text(finding), ""]
        for settled in self.accounted:
            lines += [*_finding_text(settled, mark="·"), ""]
        if self.statements:
            lines += [*(statement_text(one) for one in self.statements[:_STATEMENTS_SHOWN]), ""]
        numbers = (
            f"oversold {self.oversold} · duplicates {self.duplicates} · lost {self.lost}"
            f" · stranded {self.stranded} · in flight {self.in_flight}"
        )
        verdict = "Every promise is kept" if self.ok else counted(len(self.findings), "finding")
        lines.append(f"{verdict}: {numbers} ({self.duration_ms} ms)")
        return "\n".join(lines)


def statement_text(statement: FenceStatement) -> str:
    """What happened to a bucket that was not trusted, on one line."""
    where = f"{statement.goods_id} (sale {statement.sale_id}, bucket {statement.bucket})"
    since = rfc3339_ms(statement.noticed_at_ms)
    if statement.outcome is None:
        waits = " and waits for an operator" if statement.needs_operator else ""
        return f"! {where} is closed since {since}{waits}: {statement.cause}"
    how = "rebuilt" if statement.outcome == "rebuilt" else "carried on, nothing was lost,"
    text = (
        f"· {where} was closed for {statement.paused_ms} ms at {since}: {statement.cause}; {how}"
        f" under epoch {statement.new_epoch}; lost {statement.lost_count}, compensated"
        f" {statement.compensated}, recovered {statement.recovered_orders}, withheld"
        f" {statement.withheld_units}, oversold {statement.oversold_units}"
    )
    return text + "".join(f"; not known: {sentence}" for sentence in statement.unknown)


def _sale_text(line: SaleLine) -> str:
    name = f"{line.goods_id} (sale {line.sale_id}{', closed' if line.closed else ''})"
    if line.put_units is None:
        return f"{name}: {line.stock_units} put on sale, {line.live_units} in live orders (ledger)"
    return (
        f"{name}: {line.put_units} put on sale = {line.left_units} left + {line.held_units} held;"
        f" {line.live_units} in live orders, {line.in_flight_units} on the way to the ledger,"
        f" {line.releasing_units} on the way back"
    )


def _finding_text(finding: Finding, mark: str = "✗") -> list[str]:
    where = f"{finding.goods_id} (sale {finding.sale_id}"
    where += ")" if finding.bucket is None else f", bucket {finding.bucket})"
    lines = [
        f"{mark} {finding.kind.value} · {finding.promise.value} · {where}",
        f"  {finding.what}",
        *(f"    - {subject}" for subject in finding.ids),
    ]
    more = finding.count - len(finding.ids)
    if more > 0 and finding.ids:
        lines.append(f"    … and {more} more")
    lines.append(f"  What to do: {finding.advice}")
    return lines
