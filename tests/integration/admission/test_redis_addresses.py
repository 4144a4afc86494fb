"""Every kind of address that ``redis_url`` promises is one that both clients can use."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from seckill.admission.redis_client import connect, connect_blocking
from seckill.runtime.free_ports import choose_port
from services.certificates import Authority
from services.redis import RedisServer


@pytest.fixture(scope="module")
def addresses() -> Iterator[dict[str, str]]:
    """One Redis that listens in all three ways; its address in each."""
    # Not below pytest's own folder: the path of a socket may have 107 bytes at most.
    with tempfile.TemporaryDirectory(prefix="seckill-redis-") as name:
        folder = Path(name)
        authority = Authority(folder, "authority")
        identity = authority.sign("redis")
        tls_port = choose_port()
        server = RedisServer(
            folder / "data",
            "--unixsocket", str(folder / "redis.sock"),
            "--tls-port", str(tls_port),
            "--tls-cert-file", str(identity.certificate),
            "--tls-key-file", str(identity.key),
            "--tls-ca-cert-file", str(authority.certificate),
            "--tls-auth-clients", "no",
        ).start()  # fmt: skip
        trusted = quote(str(authority.certificate))
        try:
            yield {
                "redis": server.url,
                "rediss": f"rediss://127.0.0.1:{tls_port}/0?ssl_ca_certs={trusted}",
                "unix": f"unix://{folder}/redis.sock?db=0",
            }
        finally:
            server.remove()


@pytest.mark.parametrize("scheme", ["redis", "rediss", "unix"])
async def test_a_client_of_the_loop_reaches_it(addresses: dict[str, str], scheme: str) -> None:
    client = connect(addresses[scheme], timeout_ms=60_000)
    try:
        assert await client.ping()
    finally:
        await client.aclose()


@pytest.mark.parametrize("scheme", ["redis", "rediss", "unix"])
def test_a_client_of_a_thread_reaches_it(addresses: dict[str, str], scheme: str) -> None:
    client = connect_blocking(addresses[scheme], timeout_ms=60_000)
    try:
        assert client.ping()
    finally:
        client.close()
