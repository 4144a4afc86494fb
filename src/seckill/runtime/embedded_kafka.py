"""A Kafka broker of our own: found, fetched, configured, started, known to be ready.

A real Apache Kafka (KRaft, without ZooKeeper) on this machine, for a look at the scaled-out set,
for a small installation, and for the tests. One broker on one disk keeps what it was told as well
as that disk does; a shop that grows names brokers of its own in ``SECKILL_KAFKA_BOOTSTRAP``.
"""

import asyncio
import base64
import contextlib
import importlib.resources
import os
import re
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from seckill.runtime.data_dir import number_in, write_atomically
from seckill.runtime.errors import KafkaMissing, KafkaUnusable
from seckill.runtime.free_ports import NoFreePort, choose_port
from seckill.runtime.log_tail import last_lines
from seckill.runtime.processes import created_at, ended_by, works_in

__all__ = ["KAFKA_VERSION", "EmbeddedKafka", "KafkaNode", "choose_nodes", "find_jars"]

_log = structlog.get_logger(__name__)

KAFKA_VERSION: Final = "4.4.0"
"""What Maven is asked for; `embedded_kafka_pom.xml` says the same."""

_JAVA_OLDEST: Final = 17
_FETCH_TIMEOUT_S: Final = 600
_FORMAT_TIMEOUT_S: Final = 60
_VERSION_TIMEOUT_S: Final = 20
_TERMINATE_TIMEOUT_MS: Final = 20_000
_POLL_S: Final = 0.1
_ASK_TIMEOUT_S: Final = 2.0
_LAST_WORDS_BYTES: Final = 8_192
_LAST_WORDS_LINES: Final = 3
_JAVA_VERSION: Final = re.compile(r'version "(\d+)')


def find_jars(named: str = "") -> Path:
    """The folder with the broker's jars; fetched by Maven once for this user, where none is named.

    Args:
        named: a folder of jars, such as ``libs`` of an Apache Kafka that was unpacked by hand.

    Raises:
        KafkaMissing: there are none, and they cannot be fetched; the sentence says what to do.
    """
    if named:
        folder = Path(named).expanduser()
        if not any(folder.glob("kafka_2.13-*.jar")):
            raise KafkaMissing(f"{folder} holds no jars of Apache Kafka (kafka_2.13-….jar)")
        return folder
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "seckill"
    folder = cache / f"kafka-{KAFKA_VERSION}"
    if not folder.is_dir():
        _fetch_jars(folder)
    return folder


def _fetch_jars(folder: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise KafkaMissing(
            "the jars of Apache Kafka are not on this machine, and Maven (mvn), which fetches them,"
            " is not installed: install it, or name a folder of jars in SECKILL_KAFKA_JARS, or a"
            " running Kafka in SECKILL_KAFKA_BOOTSTRAP"
        )
    _log.info("fetching Apache Kafka, once", version=KAFKA_VERSION, to=str(folder))
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as work:
            pom = importlib.resources.files("seckill.runtime") / "embedded_kafka_pom.xml"
            (Path(work) / "pom.xml").write_bytes(pom.read_bytes())
            done = subprocess.run(  # noqa: S603  -- a program of the operator's own PATH
                [maven, "-q", "-B", "dependency:copy-dependencies", "-DincludeScope=runtime",
                 "-DoutputDirectory=jars"],
                cwd=work, capture_output=True, text=True, timeout=_FETCH_TIMEOUT_S, check=False,
            )  # fmt: skip
            if done.returncode:
                said = " / ".join((done.stdout + done.stderr).strip().splitlines()[:2])
                raise KafkaMissing(f"Maven could not fetch the jars of Apache Kafka: {said}")
            # Whole or not at all. Another one may have been faster, with the same result.
            with contextlib.suppress(FileExistsError):
                (Path(work) / "jars").rename(folder)
    except (OSError, subprocess.TimeoutExpired) as error:
        if not folder.is_dir():
            raise KafkaMissing(
                f"the jars of Apache Kafka could not be fetched to {folder}: {error}"
            ) from error


def _find_java() -> str:
    """The program ``java``. Raises KafkaMissing when there is none, or it is too old."""
    java = shutil.which("java")
    if java is None:
        raise KafkaMissing(
            f"a Kafka of our own needs Java {_JAVA_OLDEST} or later, and no java is on the PATH:"
            " install it, or name a running Kafka in SECKILL_KAFKA_BOOTSTRAP"
        )
    try:
        said = subprocess.run(  # noqa: S603  -- a program of the operator's own PATH
            [java, "-version"],
            capture_output=True,
            text=True,
            timeout=_VERSION_TIMEOUT_S,
            check=True,
        ).stderr
    except (OSError, subprocess.SubprocessError) as error:
        raise KafkaMissing(f"{java} does not tell its version: {error}") from error
    match = _JAVA_VERSION.search(said)
    if match is None or int(match[1]) < _JAVA_OLDEST:
        version = match[1] if match else "of an unknown version"
        raise KafkaMissing(f"Kafka needs Java {_JAVA_OLDEST} or later, and {java} is {version}")
    return java


@dataclass(frozen=True, slots=True)
class KafkaNode:
    """Where one broker of a cluster listens: for clients, and for the other nodes."""

    number: int
    port: int
    controller_port: int


def choose_nodes(count: int = 1) -> tuple[KafkaNode, ...]:
    """Free ports for a cluster of so many nodes. Raises KafkaUnusable when there are none."""
    ports: set[int] = set()
    try:
        while len(ports) < 2 * count:
            ports.add(choose_port())
    except NoFreePort as error:
        raise KafkaUnusable(f"it has nowhere to listen: {error}") from error
    pairs = iter(ports)
    return tuple(KafkaNode(number, next(pairs), next(pairs)) for number in range(1, count + 1))


def _new_cluster_id() -> str:
    while True:
        text = base64.urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=")
        if not text.startswith("-"):  # Kafka's own tool would take it for an option
            return text


class EmbeddedKafka:
    """One broker and controller on a folder. One user of the folder at a time.

    Use: :meth:`prepare` once, then start :attr:`command` in :attr:`folder` with
    :attr:`environment` (again and again if need be), wait with :meth:`wait_ready`, end with
    SIGTERM.

    Args:
        folder: exists; keeps data, configuration, log and ports from run to run.
        jars: see :func:`find_jars`; None looks when it is needed.
        nodes: all nodes of the cluster; None is this one alone, on ports of its own choice.
        number: which of them this one is.
        cluster_id: the same for all nodes of a cluster; empty makes one.
        start_timeout_ms: how long it may take to answer.
        heap_mb: memory of its Java, in MiB.
        options: further lines of ``server.properties``, over ours.
    """

    def __init__(
        self,
        folder: Path,
        *,
        jars: Path | None = None,
        nodes: Sequence[KafkaNode] | None = None,
        number: int = 1,
        cluster_id: str = "",
        start_timeout_ms: int = 60_000,
        heap_mb: int = 384,
        options: Mapping[str, str] | None = None,
    ) -> None:
        self.folder: Final = folder
        self._jars = jars
        self._nodes = nodes
        self._number = number
        self._cluster_id = cluster_id
        self.start_timeout_ms: Final = start_timeout_ms
        self._heap_mb = heap_mb
        self._options = options or {}
        self._java = ""

    @property
    def bootstrap(self) -> str:
        """Where it answers clients. Known after :meth:`prepare`."""
        return f"127.0.0.1:{self._node.port}"

    @property
    def command(self) -> list[str]:
        """What to start. Known after :meth:`prepare`."""
        return [*self._run_java(f"-Xmx{self._heap_mb}m", "-Xms64m"),
                "kafka.Kafka", str(self._properties)]  # fmt: skip

    @property
    def environment(self) -> dict[str, str]:
        """Variables to start it with: ours, less what would make its Java another one."""
        return {
            name: value
            for name, value in os.environ.items()
            if name not in {"CLASSPATH", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "KAFKA_OPTS"}
        }

    @property
    def _node(self) -> KafkaNode:
        assert self._nodes is not None
        return next(node for node in self._nodes if node.number == self._number)

    @property
    def _properties(self) -> Path:
        return self.folder / "server.properties"

    @property
    def _log(self) -> Path:
        return self.folder / "kafka.log"

    @property
    def _pid_file(self) -> Path:
        return self.folder / "kafka.pid"

    def prepare(self) -> None:
        """Find the programs, choose ports, configure, and format an empty folder. Blocks.

        Raises:
            KafkaMissing: there is no Java, or no jars.
            KafkaUnusable: no port is free, or the folder cannot be formatted.
        """
        self._java = _find_java()
        self._jars = self._jars or find_jars()
        if self._nodes is None:
            self._nodes = (self._kept_node(),)
            write_atomically(self.folder / "port", f"{self._node.port}\n".encode())
            write_atomically(
                self.folder / "controller-port", f"{self._node.controller_port}\n".encode()
            )
        write_atomically(self._properties, self._configuration().encode())
        if not (self.folder / "data" / "meta.properties").exists():
            self._format()

    def _kept_node(self) -> KafkaNode:
        try:
            port = choose_port(number_in(self.folder / "port"))
            controller_port = choose_port(number_in(self.folder / "controller-port"))
        except NoFreePort as error:
            raise KafkaUnusable(f"it has nowhere to listen: {error}") from error
        return KafkaNode(self._number, port, controller_port)

    def _run_java(self, *options: str) -> list[str]:
        return [
            self._java,
            *options,
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-XX:-UsePerfData",
            "-Djava.awt.headless=true",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            "-Dorg.slf4j.simpleLogger.showDateTime=true",
            "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSSXXX",
            f"-Dorg.slf4j.simpleLogger.logFile={self._log}",
            "-cp",
            f"{self._jars}/*",
        ]

    def _configuration(self) -> str:
        assert self._nodes is not None
        copies = min(3, len(self._nodes))
        voters = ",".join(f"{n.number}@127.0.0.1:{n.controller_port}" for n in self._nodes)
        options = {
            "process.roles": "broker,controller",
            "node.id": str(self._number),
            "controller.quorum.voters": voters,
            "listeners": f"PLAINTEXT://127.0.0.1:{self._node.port},"
            f"CONTROLLER://127.0.0.1:{self._node.controller_port}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self._node.port}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(self.folder / "data"),
            "auto.create.topics.enable": "false",
            "default.replication.factor": str(copies),
            "min.insync.replicas": "2" if copies > 2 else "1",  # noqa: PLR2004  -- a majority of three
            "offsets.topic.replication.factor": str(copies),
            "offsets.topic.num.partitions": "8",
            "transaction.state.log.replication.factor": str(copies),
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": str(copies),
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            "num.network.threads": "2",
            "num.io.threads": "4",
            "controlled.shutdown.enable": "true" if copies > 1 else "false",
        }
        if copies == 1:
            # Kafka relies on other brokers instead of the disk. Alone it has none, and what it has
            # acknowledged leaves the outbox: so it writes through, as our Redis does.
            options["log.flush.interval.messages"] = "1"
            # After a kill it waits for its own session of before to end. It keeps the usual 9 s,
            # for a broker that misses a beat on a busy machine is shut out for longer.
            options["broker.heartbeat.interval.ms"] = "1000"
        options |= self._options
        lines = "".join(f"{name}={value}\n" for name, value in options.items())
        return f"# Written by seckill at each start: changes here are lost.\n{lines}"

    def _format(self) -> None:
        cluster_id = self._cluster_id or _new_cluster_id()
        try:
            done = subprocess.run(  # noqa: S603  -- as above
                [*self._run_java("-Xmx128m"), "kafka.tools.StorageTool", "format",
                 "-t", cluster_id, "-c", str(self._properties)],
                capture_output=True, text=True, timeout=_FORMAT_TIMEOUT_S, check=False,
                env=self.environment,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            raise KafkaUnusable(f"the folder {self.folder} cannot be formatted: {error}") from error
        if done.returncode:
            said = " / ".join((done.stdout + done.stderr).strip().splitlines()[-2:])
            raise KafkaUnusable(f"the folder {self.folder} cannot be formatted: {said}")

    def note_start(self, pid: int) -> None:
        """To be called at each start, so that the next run finds it should this one be killed."""
        write_atomically(self._pid_file, f"{pid}\n".encode())

    async def stop_orphan(self) -> None:
        """End the broker of an earlier run that was killed, if it is still there.

        Known by its process number, its working folder and its name together, so it is ours.

        Raises:
            KafkaUnusable: it does not end.
        """
        pid = number_in(self._pid_file)
        if not pid or not works_in(pid, self.folder, ("java",)):
            return
        ends = (signal.SIGTERM, signal.SIGKILL)
        if not await ended_by(pid, created_at(pid), ends, _TERMINATE_TIMEOUT_MS):
            raise KafkaUnusable(f"the Kafka of an earlier run (process {pid}) does not end")

    async def wait_ready(self) -> None:
        """Wait until it answers. The caller also watches for the death of the process.

        Raises:
            KafkaUnusable: it did not in time, or another cluster answers at its address.
        """
        client = AdminClient(
            {
                "bootstrap.servers": self.bootstrap,
                "log_level": 0,  # it is asked before it listens: nothing to tell anybody
                "reconnect.backoff.ms": 50,
                "reconnect.backoff.max.ms": 200,
            }
        )
        until = time.monotonic() + self.start_timeout_ms / 1000
        while True:
            try:
                found = await asyncio.to_thread(client.list_topics, timeout=_ASK_TIMEOUT_S)
            except KafkaException as error:
                said = str(error.args[0])
            else:
                if self._number in found.brokers:
                    break
                said = "it has not joined its cluster"
            if time.monotonic() >= until:
                raise KafkaUnusable(
                    f"kafka was not ready {self.start_timeout_ms} ms after its start ({said})"
                )
            await asyncio.sleep(_POLL_S)
        if found.cluster_id != self._formatted_id():
            raise KafkaUnusable(f"another Kafka ({found.cluster_id}) answers at {self.bootstrap}")

    def _formatted_id(self) -> str:
        """The id of the cluster whose data the folder holds."""
        text = (self.folder / "data" / "meta.properties").read_text()
        match = re.search(r"^cluster\.id=(\S+)$", text, re.MULTILINE)
        return match[1] if match else ""

    def last_words(self) -> str:
        """The last warnings of its log; may be empty."""
        lines = last_lines(self._log, bytes_max=_LAST_WORDS_BYTES)
        # A stack trace tells a person nothing: what is indented is left out.
        told = [line for line in lines if line.strip() and not line.startswith(("\t", " "))]
        return " / ".join(line.strip() for line in told[-_LAST_WORDS_LINES:])
