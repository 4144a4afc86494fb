"""The HTTP side: the hot path of a purchase, the buyer API, live order states, health, metrics.

`app.build_app` makes one ASGI application out of `parts.WebParts`; `server.serve` serves it from
a listening socket that several processes share. The public face is ``docs/reference/http.md``.
"""
