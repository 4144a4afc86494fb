"""The sandbox provider: its page over HTTP, and its news until it is taken."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from integration.web.http import Service, running
from seckill.domain.ids import GoodsId, ReservationId
from seckill.domain.payment import Money, NewsKind, PaymentId
from seckill.payment.delivery import deliver
from seckill.payment.provider import PaymentRequest, RefundRequest
from seckill.payment.sandbox import Sandbox
from seckill.payment.webhook import WebhookReader, check_secret
from unit.web.doubles import NOW_MS, FixedClock, PartAway, World

WINDOW_MS = 60_000


class Shop:
    """A service whose payment provider is the sandbox."""

    def __init__(self, service: Service, world: World, sandbox: Sandbox, clock: FixedClock) -> None:
        self.service, self.world, self.sandbox, self.clock = service, world, sandbox, clock

    async def start(self, name: str = "pay1") -> str:
        return await self.sandbox.start(
            PaymentRequest(
                payment_id=PaymentId(name),
                reservation_id=ReservationId("r<1>"),
                goods_id=GoodsId("茶&"),
                quantity=2,
                money=Money(1_234_567),
                deadline_ms=NOW_MS + WINDOW_MS,
            )
        )

    async def press(self, button: str, name: str = "pay1", **headers: str) -> int:
        return (await self.service.ask("POST", f"/sandbox/pay/{name}/{button}", headers)).status

    async def deliver(self) -> int:
        return await deliver(self.sandbox, f"http://127.0.0.1:{self.service.port}/payments/webhook")

    @property
    def news(self) -> list[tuple[str, int | None]]:
        return [(n.kind.value, n.money and n.money.amount_fen) for n in self.world.till.news]


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Shop]:
    clock = FixedClock()
    sandbox = Sandbox(tmp_path / "sandbox.db", "http://shop.example", clock)
    world = World()
    world.till.reader = WebhookReader(sandbox.webhook_secrets)
    world.parts = replace(world.parts, sandbox=sandbox)
    async with running(world) as service:
        yield Shop(service, world, sandbox, clock)


async def test_a_payment_that_is_started_twice_is_one_and_has_one_page(shop: Shop) -> None:
    assert await shop.start() == await shop.start() == "http://shop.example/sandbox/pay/pay1"
    page = await shop.service.ask("GET", "/sandbox/pay/pay1")
    assert page.status == 200
    text = page.body.decode()
    assert "12,345.67 CNY" in text
    assert "茶&amp;" in text
    assert "r&lt;1&gt;" in text
    assert "form-action 'self'" in page.headers["content-security-policy"]
    assert (await shop.service.ask("GET", "/sandbox/pay/pay2")).status == 404


@pytest.mark.parametrize(
    ("button", "told"),
    [
        ("pay", [("payment.paid", 1_234_567)]),
        ("fail", [("payment.failed", None)]),
        ("pay_twice", [("payment.paid", 1_234_567)] * 2),
        ("pay_wrong", [("payment.paid", 1_234_566)]),
    ],
)
async def test_each_button_tells_what_it_says_once(
    shop: Shop, button: str, told: list[tuple[str, int | None]]
) -> None:
    await shop.start()
    for _ in range(2):
        assert await shop.press(button) == 303
    assert await shop.deliver() == len(told)
    assert shop.news == told
    assert await shop.deliver() == 0
    names = [n.event_id for n in shop.world.till.news]
    assert len(set(names)) == len(names)


async def test_a_payment_that_is_made_is_made(shop: Shop) -> None:
    await shop.start()
    await shop.press("pay")
    for button in ("fail", "pay_twice", "pay_wrong"):
        assert await shop.press(button) == 303
    await shop.deliver()
    assert shop.news == [("payment.paid", 1_234_567)]
    charge = await shop.sandbox.charge("pay1")
    assert charge is not None
    assert charge.state == "paid"


async def test_late_money_comes_after_the_deadline(shop: Shop) -> None:
    await shop.start()
    await shop.press("pay_late")
    assert await shop.deliver() == 0
    shop.clock.at_ms += WINDOW_MS + 3_000
    assert await shop.deliver() == 1


async def test_a_payment_that_failed_may_come_through_after_all(shop: Shop) -> None:
    await shop.start()
    await shop.press("fail")
    await shop.press("pay")
    await shop.deliver()
    assert sorted(kind for kind, _ in shop.news) == ["payment.failed", "payment.paid"]


async def test_news_that_is_not_taken_comes_again_under_the_same_name(shop: Shop) -> None:
    await shop.start()
    await shop.press("pay")
    shop.world.till.error = PartAway("the ledger is away")
    assert await shop.deliver() == 0
    assert await shop.deliver() == 0  # not yet: after a pause
    shop.world.till.error = None
    shop.clock.at_ms += 1_000
    assert await shop.deliver() == 1
    # Nobody there at all.
    await shop.start("pay2")
    await shop.press("pay", "pay2")
    assert await deliver(shop.sandbox, "http://127.0.0.1:9/nowhere") == 0
    shop.clock.at_ms += 1_000
    assert await shop.deliver() == 1


async def test_several_processes_deliver_each_news_once(shop: Shop) -> None:
    for number in range(12):
        await shop.start(f"pay{number}")
        await shop.press("pay", f"pay{number}")
    assert sum(await asyncio.gather(*(shop.deliver() for _ in range(3)))) == 12
    assert len(shop.news) == 12


async def test_a_refund_is_given_once_and_told(shop: Shop) -> None:
    await shop.start()
    request = RefundRequest(
        refund_id="pay1-r1", payment_id=PaymentId("pay1"), money=Money(1_234_567)
    )
    for _ in range(2):
        assert await shop.sandbox.refund(request) is False
    assert await shop.deliver() == 1
    assert shop.news == [(NewsKind.REFUNDED.value, 1_234_567)]


async def test_another_page_cannot_press_the_buttons(shop: Shop) -> None:
    await shop.start()
    assert await shop.press("pay", Origin="https://evil.example") == 403
    assert await shop.press("pay", Origin="http://test") == 303
    assert await shop.press("explode") == 422
    assert await shop.press("pay", "nobody") == 404
    assert await shop.deliver() == 1


def test_its_secret_is_drawn_once_and_can_serve(tmp_path: Path) -> None:
    first = Sandbox(tmp_path / "s.db", "", FixedClock())
    assert Sandbox(tmp_path / "s.db", "", FixedClock()).secret == first.secret
    assert check_secret(first.secret)
