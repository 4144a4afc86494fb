"""The page of the sandbox provider: a button for each thing that a payment can do.

A small application of its own beside the service, as the provider's would be. It is only there
where the setting ``payment_provider`` is ``sandbox``, which is only allowed on loopback.
"""

from html import escape
from typing import Final
from urllib.parse import urlsplit

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response

from seckill.domain.instants import rfc3339_ms
from seckill.payment.sandbox import Charge, Play, Sandbox

__all__ = ["sandbox_pages"]

_CSP: Final = "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'"
_LABELS: Final = {
    Play.PAY: "付款 Pay",
    Play.FAIL: "付款失败 Let it fail",
    Play.PAY_LATE: "超时付款 Pay after the deadline",
    Play.PAY_TWICE: "重复通知 Pay, and tell of it twice",
    Play.PAY_WRONG: "金额错误 Pay a wrong amount",
}
_NO_SUCH: Final = "There is no such payment."


def sandbox_pages(sandbox: Sandbox) -> FastAPI:
    """The sandbox's application, to be mounted at ``/sandbox``."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)

    @app.get("/pay/{payment_id}")
    async def show(payment_id: str) -> Response:
        charge = await sandbox.charge(payment_id)
        if charge is None:
            return PlainTextResponse(_NO_SUCH, status_code=404)
        return _page(charge)

    @app.post("/pay/{payment_id}/{play}")
    async def act(payment_id: str, play: Play, request: Request) -> Response:
        origin = request.headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != request.headers.get("host"):
            return PlainTextResponse("Only this page itself may do that.", status_code=403)
        if await sandbox.play(payment_id, play) is None:
            return PlainTextResponse(_NO_SUCH, status_code=404)
        return RedirectResponse(f"/sandbox/pay/{payment_id}", status_code=303)

    return app


def _page(charge: Charge) -> HTMLResponse:
    amount = f"{charge.money.amount_fen / 100:,.2f} {escape(charge.money.currency)}"
    buttons = "\n".join(
        f'<form method="post" action="/sandbox/pay/{escape(charge.payment_id)}/{play.value}">'
        f"<button{' disabled' if charge.state == 'paid' else ''}>{label}</button></form>"
        for play, label in _LABELS.items()
    )
    return HTMLResponse(
        f"""<!doctype html>
<html lang="zh-CN">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Sandbox payment</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 32rem; margin: 2rem auto }}
button {{ font: inherit; width: 100%; padding: .6rem; margin: .25rem 0 }}
dt {{ color: #666 }} dd {{ margin: 0 0 .5rem }}
</style></head>
<body>
<h1>沙箱支付 Sandbox payment</h1>
<p>No money moves here. 这里不会发生真实付款。</p>
<dl>
<dt>金额 Amount</dt><dd>{amount}</dd>
<dt>商品 Item</dt><dd>{charge.quantity} × {escape(charge.goods_id)}</dd>
<dt>订单 Order</dt><dd>{escape(charge.reservation_id)}</dd>
<dt>截止 Pay by</dt><dd>{rfc3339_ms(charge.deadline_ms)}</dd>
<dt>状态 State</dt><dd id="state">{escape(charge.state)}</dd>
</dl>
{buttons}
</body></html>
""",
        headers={"content-security-policy": _CSP},
    )
