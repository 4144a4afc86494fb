"""The page that the set-up link leads to: it makes the first admin, and shows their token once.

The secret stands behind ``#``: it does not reach a server, a proxy or a log until the button is
pressed, and looking at the page changes nothing.
"""

import base64
import hashlib
from typing import Final

from fastapi import FastAPI
from fastapi.responses import HTMLResponse, Response

__all__ = ["add_setup_page"]

_STYLE: Final = """
body{font:16px/1.5 system-ui,sans-serif;max-width:36rem;margin:2rem auto;padding:0 1rem}
input,button{font:inherit;padding:.4rem .6rem}
output{display:block;margin:1rem 0;font-family:ui-monospace,monospace;overflow-wrap:anywhere}
@media(prefers-color-scheme:dark){body{background:#111;color:#eee}}
"""
_SCRIPT: Final = """
document.forms[0].addEventListener('submit', async event => {
  event.preventDefault();
  const out = document.querySelector('output');
  const wish = {secret: location.hash.slice(1), name: document.forms[0].elements.name.value};
  try {
    const reply = await fetch('/admin/api/setup', {
      method: 'POST', headers: {'content-type': 'application/json'}, body: JSON.stringify(wish)});
    const said = await reply.json();
    out.textContent = reply.ok ? said.token : said.detail;
    document.querySelector('#kept').hidden = !reply.ok;
    if (!reply.ok) { return; }
    document.forms[0].hidden = true;
    history.replaceState(null, '', '/admin/setup');
  } catch (error) { out.textContent = String(error); }
});
"""
_PAGE: Final = f"""<!doctype html><html lang="en"><meta charset="utf-8">
<meta name="viewport" content="width=device-width,initial-scale=1">
<title>Seckill: the first admin</title><style>{_STYLE}</style>
<h1>首位管理员 The first admin</h1>
<form><label>名称 Name <input name="name" required maxlength="40"
pattern="[A-Za-z0-9][A-Za-z0-9._@\\-]*" autocomplete="username"></label>
<button>创建 Create</button></form>
<output></output>
<p id="kept" hidden>请妥善保存，此令牌仅显示一次。 Keep this token: it is shown only once.
It goes into <code>Authorization: Bearer …</code></p>
<script>{_SCRIPT}</script></html>"""


def _source(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


_CSP: Final = (
    f"default-src 'none'; style-src {_source(_STYLE)}; script-src {_source(_SCRIPT)};"
    " connect-src 'self'; form-action 'none'; frame-ancestors 'none'; base-uri 'none'"
)


def add_setup_page(app: FastAPI) -> None:
    """Add the page."""

    @app.get("/admin/setup", include_in_schema=False)
    async def setup_page() -> Response:
        return HTMLResponse(_PAGE, headers={"content-security-policy": _CSP})
