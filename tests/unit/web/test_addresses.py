"""C58: whose address counts, whatever a client writes into the headers."""

import pytest
from hypothesis import given, strategies as st

from seckill.web.addresses import Addresses

XFF = "x-forwarded-for"


def scope(
    peer: str | None, *values: str | bytes, name: str = XFF
) -> tuple[str | None, list[tuple[bytes, bytes]]]:
    headers = [
        (name.encode(), value if isinstance(value, bytes) else value.encode()) for value in values
    ]
    return peer, headers


@pytest.mark.parametrize(
    "values",
    [(), ("1.2.3.4",), ("1.2.3.4, 5.6.7.8",), ("1.2.3.4", "5.6.7.8"), (b"\xff" * 10_000,)],
)
def test_without_trusted_proxies_the_peer_counts(values: tuple[str | bytes, ...]) -> None:
    assert Addresses().of(*scope("9.9.9.9", *values)) == "9.9.9.9"


@pytest.mark.parametrize(
    ("proxies", "values", "counts"),
    [
        (1, (), "9.9.9.9"),
        (1, ("1.2.3.4",), "1.2.3.4"),
        (1, ("6.6.6.6, 1.2.3.4",), "1.2.3.4"),
        (1, ("6.6.6.6,1.2.3.4",), "1.2.3.4"),
        (1, ("6.6.6.6", "1.2.3.4"), "1.2.3.4"),
        (2, ("6.6.6.6, 1.2.3.4, 10.0.0.1",), "1.2.3.4"),
        (2, ("6.6.6.6", "1.2.3.4", "10.0.0.1"), "1.2.3.4"),
        (2, ("6.6.6.6, 1.2.3.4", "10.0.0.1"), "1.2.3.4"),
        (3, ("1.2.3.4",), "1.2.3.4"),
        (1, ("1.2.3.4:5678",), "1.2.3.4"),
        (1, (" ::ffff:1.2.3.4 ",), "1.2.3.4"),
        (1, ("[::ffff:1.2.3.4]:80",), "1.2.3.4"),
        (1, ("2001:db8:1:2:3::4",), "2001:db8:1:2::/64"),
        (1, ("[2001:DB8:1:2::9]:443",), "2001:db8:1:2::/64"),
        (1, ("fe80::1%eth0",), "fe80::/64"),
        (1, ("6.6.6.6, unknown",), "9.9.9.9"),
        (1, ("6.6.6.6,",), "9.9.9.9"),
        (1, ("6.6.6.6, " + "x" * 10_000,), "9.9.9.9"),
        (2, ("6.6.6.6, nonsense, 10.0.0.1",), "10.0.0.1"),
        (1, (b"\xff\x00" * 5_000 + b", 1.2.3.4",), "1.2.3.4"),
        (1, ("," * 10_000,), "9.9.9.9"),
    ],
)
def test_the_address_that_the_outermost_trusted_proxy_saw_counts(
    proxies: int, values: tuple[str | bytes, ...], counts: str
) -> None:
    assert Addresses(proxies).of(*scope("9.9.9.9", *values)) == counts


def test_the_header_that_no_proxy_writes_is_the_clients_own_word() -> None:
    lies = scope("9.9.9.9", "for=6.6.6.6", name="forwarded")
    assert Addresses(1).of(*lies) == "9.9.9.9"


@pytest.mark.parametrize(
    ("value", "counts"),
    [
        ("for=1.2.3.4", "1.2.3.4"),
        ("for=6.6.6.6, for=1.2.3.4;proto=https;by=10.0.0.1", "1.2.3.4"),
        ('proto=http; For="[2001:db8:1:2::9]:4711"', "2001:db8:1:2::/64"),
        ("for=_hidden", "9.9.9.9"),
        ("for=", "9.9.9.9"),
    ],
)
def test_forwarded_of_rfc_7239(value: str, counts: str) -> None:
    named = scope("9.9.9.9", value, name="forwarded")
    assert Addresses(1, header="forwarded").of(*named) == counts


def test_the_addresses_of_one_ipv6_network_are_one() -> None:
    addresses = Addresses()
    first, second, other = (
        addresses.of(*scope(peer))
        for peer in ("2001:db8::1", "2001:db8::ffff:1", "2001:db8:0:1::1")
    )
    assert first == second != other
    alone = Addresses(ipv6_prefix_bits=128)
    assert alone.of(*scope("2001:db8::1")) != alone.of(*scope("2001:db8::2"))


def test_the_same_sender_has_one_name_however_it_is_written() -> None:
    addresses = Addresses(1)
    spellings = ["2001:db8:0:0:0:0:0:1", "2001:DB8::1", "[2001:db8::1]:9", "2001:db8::1"]
    assert len({addresses.of(*scope("9.9.9.9", text)) for text in spellings}) == 1


def test_a_request_without_a_peer_has_a_name_too() -> None:
    assert Addresses().of(*scope(None)) == "unknown"
    assert Addresses().of(*scope("not an address")) == "unknown"


@given(
    st.integers(0, 3),
    st.lists(st.binary(max_size=300), max_size=3),
    st.sampled_from(["x-forwarded-for", "forwarded"]),
)
def test_nothing_that_a_client_writes_is_an_error(
    proxies: int, values: list[bytes], header: str
) -> None:
    found = Addresses(proxies, header=header).of(*scope("9.9.9.9", *values, name=header))
    assert found
    assert len(found) < 64


def test_memory_is_bounded_however_many_addresses_come() -> None:
    addresses = Addresses()
    for number in range(40_000):
        addresses.of(*scope(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"))
    assert len(addresses._names) <= 16_384
