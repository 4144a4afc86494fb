"""What can stop a start, or end a run. Each message is one sentence fit for a terminal.

::

    SeckillError
    └── RunError
        ├── SettingsInvalid     a setting breaks a rule, or contradicts another
        ├── NoService           a command needs a running service, and none is to be found
        ├── PartMissing         a process lacks what only `seckill serve` can give it
        ├── SlotTaken           another process does this work under this number
        ├── PrepareFailed       what must be done before the parts start could not be done
        ├── DataDirUnusable     the data directory cannot be made, read or written
        │   └── DataDirInUse    another supervisor runs on it
        ├── RulesUnusable       the stored rules of flow control cannot be read or kept
        ├── AddressUnusable     the address to serve on cannot be taken
        ├── RedisMissing        no Redis server is to be found on this machine
        ├── RedisUnusable       one is there, but it must not or cannot be used on this data
        ├── KafkaMissing        no Kafka can be started on this machine, and none was named
        ├── KafkaUnusable       one is there, but it must not or cannot be used on this data
        ├── PostgresMissing     no PostgreSQL server is to be found on this machine
        ├── PostgresUnusable    one is there, but it must not or cannot be used on this data
        ├── ProviderUnusable    the payment provider of the settings cannot be used
        └── PartFailed          a part of the run cannot start, or cannot stay
"""

from seckill.domain.errors import SeckillError

__all__ = [
    "AddressUnusable",
    "DataDirInUse",
    "DataDirUnusable",
    "KafkaMissing",
    "KafkaUnusable",
    "NoService",
    "PartFailed",
    "PartMissing",
    "PostgresMissing",
    "PostgresUnusable",
    "PrepareFailed",
    "ProviderUnusable",
    "RedisMissing",
    "RedisUnusable",
    "RulesUnusable",
    "RunError",
    "SettingsInvalid",
    "SlotTaken",
]


class RunError(SeckillError):
    """Anything that this room raises on purpose."""


class SettingsInvalid(RunError):  # noqa: N818  -- reads as what it is
    """A setting breaks a rule, or contradicts another one.

    Attributes:
        setting: name of the setting, as in the reference.
        rule: the rule that it breaks, in words.
    """

    def __init__(self, setting: str, rule: str, *, written_as: str = "") -> None:
        super().__init__(f"{written_as or setting}: {rule}")
        self.setting = setting
        self.rule = rule


class NoService(RunError):  # noqa: N818  -- reads as what it is
    """A command needs a running service, and none is to be found."""

    def __init__(self, root: str) -> None:
        super().__init__(
            f"no service runs on the data directory {root}: start one with `seckill serve`, or"
            " name its directory with --data-dir or SECKILL_DATA_DIR"
        )


class PartMissing(RunError):  # noqa: N818  -- reads as what it is
    """A process was started without something that only `seckill serve` can give it."""


class SlotTaken(RunError):  # noqa: N818  -- reads as what it is
    """Another process does this work under this number.

    Attributes:
        pid: process id of the other one, 0 when it has not written it down yet.
    """

    def __init__(self, role: str, slot: int, root: str, pid: int) -> None:
        who = f"process {pid}" if pid else "another process"
        super().__init__(
            f"{who} already is {role} {slot} of the data directory {root}: give this one a number"
            " of its own with --slot"
        )
        self.pid = pid


class PrepareFailed(RunError):  # noqa: N818  -- reads as what it is
    """What must be done before the parts start could not be done."""


class DataDirUnusable(RunError):  # noqa: N818  -- reads as what it is
    """The data directory cannot be made, read or written."""


class DataDirInUse(DataDirUnusable):
    """Another supervisor runs on this data directory.

    Attributes:
        pid: process id of that supervisor, 0 when it has not written it down yet.
    """

    def __init__(self, root: str, pid: int) -> None:
        who = f"process {pid}" if pid else "another process"
        super().__init__(
            f"{who} already runs on the data directory {root}: stop it first, or give this run "
            "another one with --data-dir"
        )
        self.pid = pid


class AddressUnusable(RunError):  # noqa: N818  -- reads as what it is
    """The address to serve on cannot be taken."""


class RedisMissing(RunError):  # noqa: N818  -- reads as what it is
    """No Redis server is to be found on this machine, and none was named."""


class RedisUnusable(RunError):  # noqa: N818  -- reads as what it is
    """A Redis server is there, but it must not or cannot be used on this data."""


class KafkaMissing(RunError):  # noqa: N818  -- reads as what it is
    """No Kafka can be started on this machine, and none was named."""


class KafkaUnusable(RunError):  # noqa: N818  -- reads as what it is
    """A Kafka is there, but it must not or cannot be used on this data."""


class PostgresMissing(RunError):  # noqa: N818  -- reads as what it is
    """No PostgreSQL server is to be found on this machine."""


class PostgresUnusable(RunError):  # noqa: N818  -- reads as what it is
    """A PostgreSQL server is there, but it must not or cannot be used on this data."""


class ProviderUnusable(RunError):  # noqa: N818  -- reads as what it is
    """The payment provider of the settings cannot be used."""

    def __init__(self, named: str, why: str) -> None:
        super().__init__(f"the payment provider {named!r} cannot be used: {why}")


class PartFailed(RunError):  # noqa: N818  -- reads as what it is
    """A part of the run cannot start, or dies again and again.

    Attributes:
        role: such as ``web``.
        slot: number of the part among those of its role.
        last_words: the last lines that it wrote, oldest first; may be empty.
    """

    def __init__(self, role: str, slot: int, reason: str, last_words: str = "") -> None:
        said = f"; its last words: {last_words}" if last_words else ""
        super().__init__(f"{role} {slot} {reason}{said}")
        self.role = role
        self.slot = slot
        self.last_words = last_words


class RulesUnusable(RunError):  # noqa: N818  -- reads as what it is
    """The stored rules of flow control cannot be read or kept."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"rules of flow control: {reason}")
