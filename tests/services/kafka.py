"""A real Kafka of the tests' own: free ports, own folder, small heap, ended by pid.

``kafka_broker`` is a session fixture. The jars are fetched once
by Maven into the user's cache. SECKILL_TEST_KAFKA names a running broker to use instead, for the
tests that leave the broker itself alone. Where no Kafka can be started, the tests that ask for it are
skipped with one line that says so; with CI=true they fail.
"""

import asyncio
import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from seckill.pipeline.errors import ChannelUnavailable
from seckill.pipeline.kafka.options import KafkaOptions
from seckill.pipeline.kafka.topics import ensure_topics
from seckill.runtime.embedded_kafka import EmbeddedKafka, KafkaNode, choose_nodes, find_jars
from seckill.runtime.errors import KafkaMissing
from seckill.runtime.free_ports import choose_port
from services.certificates import Authority
from services.missing import skip_without
from services.names import own_name
from services.server_process import ServerProcess

__all__ = [
    "KafkaBroker",
    "KafkaCluster",
    "administer",
    "jars_or_skip",
    "kafka_broker",
    "make_topics",
    "own_options",
    "tell_group",
]

_LAUNCHER = ThreadPoolExecutor(1, "kafka launcher")

_TEST_OPTIONS = {
    # Nothing of it outlives the session, and what a broker's own disk forgets is not tested here.
    "log.flush.interval.messages": "9223372036854775807",
    # So that the death of a group member is noticed as soon as a test wants.
    "group.min.session.timeout.ms": "500",
    "group.consumer.min.session.timeout.ms": "500",
    "message.max.bytes": "4194304",
}
_SOON_BACK = {
    # A killed broker is let back when it is known to be gone. One that only stands still for a
    # while is shut out by the same numbers, so they are not for a broker that is left alone.
    "broker.session.timeout.ms": "1500",
    "broker.heartbeat.interval.ms": "300",
}


def jars_or_skip() -> Path:
    """The broker's jars, or no test."""
    try:
        return find_jars(os.environ.get("SECKILL_KAFKA_JARS", ""))
    except KafkaMissing as missing:
        skip_without(f"no Kafka: {missing}: the Kafka half is NOT TESTED")


class SecureListeners:
    """Further addresses of a broker: TLS, TLS that wants a certificate, a login over TLS.

    ``PLAIN`` knows the user seckill with the password "open sesame". Others are to be made.
    """

    def __init__(self, folder: Path, node: KafkaNode) -> None:
        self.authority = Authority(folder, "authority")
        self.client = self.authority.sign("client")
        broker = self.authority.sign("broker")
        ports = {"SSL": choose_port(), "MUTUAL": choose_port(), "SASL": choose_port()}
        self.bootstrap = {name: f"127.0.0.1:{port}" for name, port in ports.items()}
        open_to_clients = ",".join(
            f"{name}://{at}"
            for name, at in {"PLAINTEXT": f"127.0.0.1:{node.port}", **self.bootstrap}.items()
        )
        modules = "org.apache.kafka.common.security"
        self.options = {
            "listeners": f"{open_to_clients},CONTROLLER://127.0.0.1:{node.controller_port}",
            "advertised.listeners": open_to_clients,
            "listener.security.protocol.map": (
                "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SSL:SSL,MUTUAL:SSL,SASL:SASL_SSL"
            ),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(broker.both),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority.certificate),
            "listener.name.mutual.ssl.client.auth": "required",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
            "listener.name.sasl.plain.sasl.jaas.config": (
                f'{modules}.plain.PlainLoginModule required user_seckill="open sesame";'
            ),
            "listener.name.sasl.scram-sha-256.sasl.jaas.config": (
                f"{modules}.scram.ScramLoginModule required;"
            ),
        }


class KafkaBroker(ServerProcess):
    """One broker process. Can be killed, frozen, restarted with the same data and ports.

    Args:
        mortal: it is let back soon after a kill.
    """

    def __init__(
        self,
        folder: Path,
        *,
        nodes: Sequence[KafkaNode] | None = None,
        number: int = 1,
        cluster_id: str = "",
        secure: bool = False,
        mortal: bool = True,
    ) -> None:
        super().__init__()
        folder.mkdir(parents=True, exist_ok=True)
        nodes = nodes or choose_nodes()
        self.secure = SecureListeners(folder / "certificates", nodes[0]) if secure else None
        self._kafka = EmbeddedKafka(
            folder,
            jars=jars_or_skip(),
            nodes=nodes,
            number=number,
            cluster_id=cluster_id,
            heap_mb=256,
            start_timeout_ms=180_000,
            options=_TEST_OPTIONS
            | (_SOON_BACK if mortal else {})
            | (self.secure.options if self.secure else {}),
        )
        self._kafka.prepare()
        self.number = number
        self.bootstrap = self._kafka.bootstrap

    def launch(self) -> None:
        # The kernel ends the broker with the *thread* that started it, so that is one which stays.
        _LAUNCHER.submit(self._launch).result()

    def _launch(self) -> None:
        assert self._process is None
        with (self._kafka.folder / "out.log").open("ab") as log:
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "TERM", *self._kafka.command],
                cwd=self._kafka.folder,
                env=self._kafka.environment,
                stdout=log,
                stderr=log,
            )

    def wait_ready(self) -> "KafkaBroker":
        # In a thread: a fixture may be asked for while a loop runs in this one.
        with ThreadPoolExecutor(1) as elsewhere:
            elsewhere.submit(lambda: asyncio.run(self._wait_ready())).result()
        return self

    async def _wait_ready(self) -> None:
        assert self._process is not None
        ready = asyncio.create_task(self._kafka.wait_ready())
        while not ready.done():
            assert self._process.poll() is None, self._kafka.last_words()
            await asyncio.wait({ready}, timeout=0.1)
        ready.result()

    def start(self) -> "KafkaBroker":
        self.launch()
        return self.wait_ready()


class KafkaCluster:
    """Three brokers that copy from each other."""

    def __init__(self, folder: Path) -> None:
        nodes = choose_nodes(3)
        self.brokers = [
            KafkaBroker(
                folder / f"node-{node.number}",
                nodes=nodes,
                number=node.number,
                cluster_id="c2Vja2lsbC10ZXN0cy0xMg",
            )
            for node in nodes
        ]
        self.bootstrap = ",".join(broker.bootstrap for broker in self.brokers)

    def start(self) -> "KafkaCluster":
        for broker in self.brokers:
            broker.launch()
        for broker in self.brokers:
            broker.wait_ready()
        return self

    def stop(self) -> None:
        for broker in self.brokers:
            if broker.running:
                broker.kill()


class _GivenBroker(KafkaBroker):
    """A broker that somebody else runs."""

    def __init__(self, bootstrap: str) -> None:
        ServerProcess.__init__(self)
        self.number = 0
        self.secure = None
        self.bootstrap = bootstrap


def own_options(bootstrap: str, **changes: Any) -> KafkaOptions:
    """Names that no other test has, and no member of the group that is taken for dead."""
    name = own_name()
    options = KafkaOptions(
        bootstrap=bootstrap,
        topic=f"{name}-orders",
        group=f"{name}-workers",
        partitions=3,
        session_timeout_ms=12_000,
        poll_interval_ms_max=60_000,
        delivery_timeout_ms=60_000,
    )
    return replace(options, **changes)


def administer(bootstrap: str, ask: Callable[[AdminClient], "Future[Any]"]) -> None:
    """Ask the controller something, each time by a new client: one may wait for it in vain."""
    for last in (False, False, True):
        client = AdminClient({"bootstrap.servers": bootstrap})
        try:
            ask(client).result(20)
        except (KafkaException, TimeoutError) as error:
            code = error.args[0].code() if isinstance(error, KafkaException) else None
            if code == KafkaError.TOPIC_ALREADY_EXISTS:
                return
            if last or code not in (None, KafkaError._TIMED_OUT):
                raise
        else:
            return


async def make_topics(options: KafkaOptions) -> None:
    """As a relay makes them: asked again until a broker that is busy has done it."""
    async with asyncio.timeout(120):
        while True:
            with contextlib.suppress(ChannelUnavailable):
                await ensure_topics(options, tell=False)
                return


def tell_group(bootstrap: str, group: str) -> str:
    """What the brokers know of a consumer group: its state, its members, how far each has come.

    For the words of a test that failed. By Kafka's own command: the client library's dies with a
    segmentation fault where a group has no coordinator.
    """
    command = [
        "java", "-Xmx64m", "-cp", f"{jars_or_skip()}/*",
        "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
        "--bootstrap-server", bootstrap, "--describe", "--group", group,
    ]  # fmt: skip
    told = [
        subprocess.run([*command, *what], capture_output=True, text=True, timeout=60, check=False)
        for what in (["--state"], ["--members", "--verbose"], ["--offsets"])
    ]
    return "\n".join((each.stdout + each.stderr).strip() for each in told)


@pytest.fixture(scope="session")
def kafka_broker() -> Iterator[KafkaBroker]:
    """One Kafka for the session; every test makes its own topics in it."""
    if given := os.environ.get("SECKILL_TEST_KAFKA"):
        yield _GivenBroker(given)
        return
    folder = Path(tempfile.mkdtemp(prefix="seckill-kafka-"))
    broker = None
    try:
        broker = KafkaBroker(folder, secure=True, mortal=False)
        yield broker.start()
    finally:
        if broker is not None and broker.running:
            broker.kill()  # nothing in it is worth an orderly end
        shutil.rmtree(folder, ignore_errors=True)
