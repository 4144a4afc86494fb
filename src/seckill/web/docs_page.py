"""The page under ``/docs``: the OpenAPI document for people, without script and without a CDN."""

import base64
import hashlib
from html import escape
from typing import Any, Final

__all__ = ["DOCS_CSP", "docs_page"]

_STYLE: Final = """
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
code{font-family:ui-monospace,monospace;background:#8882;padding:0 .25em;border-radius:3px}
details{border:1px solid #8886;border-radius:6px;margin:.5rem 0;padding:.5rem .75rem}
summary{cursor:pointer}
.method{display:inline-block;min-width:4rem;font-weight:700}
table{border-collapse:collapse;width:100%}
th,td{text-align:left;vertical-align:top;padding:.25rem .75rem .25rem 0;border-top:1px solid #8884}
@media(prefers-color-scheme:dark){body{background:#111;color:#eee}a{color:#8cf}}
"""

_GROUPS: Final = {
    "purchase": "Buying",
    "goods": "Goods",
    "orders": "Orders of a buyer",
    "payments": "News of the payment provider",
    "operations": "The service itself",
    "admin": "Operators",
}
"""Headings by tag, in the order in which a reader needs them."""

DOCS_CSP: Final = (
    "default-src 'none'; frame-ancestors 'none'; style-src 'sha256-"
    + base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode("ascii")
    + "'"
)
"""Content-Security-Policy of the page: its one style sheet and nothing else."""


def docs_page(document: dict[str, Any]) -> str:
    """The whole page. Everything out of the document is escaped."""
    info = document["info"]
    schemas = document.get("components", {}).get("schemas", {})
    groups: dict[str, list[str]] = {tag: [] for tag in _GROUPS}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            groups[operation["tags"][0]].append(_operation(path, method, operation))
    operations = "".join(
        f"<h2>{_GROUPS[tag]}</h2>{''.join(calls)}" for tag, calls in groups.items() if calls
    )
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(info['title'])} API</title><style>{_STYLE}</style>"
        f"<h1>{escape(info['title'])} {escape(info['version'])}</h1>"
        f"<p>{escape(info.get('summary', ''))} The machine-readable form is"
        ' <a href="/openapi.json">/openapi.json</a>.</p>'
        f"{operations}<h2>Shapes</h2>"
        + "".join(_schema(name, schema) for name, schema in sorted(schemas.items()))
        + "</html>"
    )


def _operation(path: str, method: str, operation: dict[str, Any]) -> str:
    parameters = "".join(
        f"<tr><td><code>{escape(p['name'])}</code><td>{escape(p['in'])}"
        f"<td>{'required' if p.get('required') else 'optional'}"
        f"<td>{_type(p.get('schema', {}))} {escape(p.get('description', ''))}"
        for p in operation.get("parameters", [])
    )
    body = operation.get("requestBody", {}).get("content", {})
    responses = "".join(
        f"<tr><td><code>{escape(str(status))}</code><td>{escape(response['description'])}"
        f"<td>{_contents(response.get('content', {}))}"
        for status, response in operation["responses"].items()
    )
    return (
        f'<details><summary><span class="method">{escape(method.upper())}</span>'
        f"<code>{escape(path)}</code> {escape(operation.get('summary', ''))}</summary>"
        f"<p>{escape(operation.get('description', ''))}</p>"
        + (f"<h3>Parameters</h3><table>{parameters}</table>" if parameters else "")
        + (f"<h3>Body</h3><p>{_contents(body)}</p>" if body else "")
        + f"<h3>Answers</h3><table>{responses}</table></details>"
    )


def _contents(content: dict[str, Any]) -> str:
    return "<br>".join(
        f"<code>{escape(media_type)}</code> {_type(entry.get('schema', {}))}"
        for media_type, entry in content.items()
    )


def _schema(name: str, schema: dict[str, Any]) -> str:
    required = schema.get("required", [])
    rows = "".join(
        f"<tr><td><code>{escape(field)}</code><td>{_type(entry)}"
        f"<td>{'always' if field in required else 'sometimes'}"
        f"<td>{escape(entry.get('description', ''))}"
        for field, entry in schema.get("properties", {}).items()
    )
    values = ", ".join(f"<code>{escape(str(value))}</code>" for value in schema.get("enum", []))
    return (
        f'<details id="{escape(name)}"><summary><code>{escape(name)}</code></summary>'
        f"<p>{escape(schema.get('description', ''))} {values}</p><table>{rows}</table></details>"
    )


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = escape(schema["$ref"].rsplit("/", 1)[-1])
        return f'<a href="#{name}">{name}</a>'
    if "anyOf" in schema:
        return " or ".join(_type(choice) for choice in schema["anyOf"])
    kind = schema.get("type", "anything")
    if kind == "array":
        return f"list of {_type(schema.get('items', {}))}"
    if kind == "object" and "properties" in schema:
        fields = ", ".join(
            f"<code>{escape(field)}</code>: {_type(entry)}"
            for field, entry in schema["properties"].items()
        )
        return f"object ({fields})"
    text = " or ".join(kind) if isinstance(kind, list) else str(kind)
    bounds = [f"{word} {schema[key]}" for key, word in _BOUNDS if key in schema]
    return escape(", ".join([text, *bounds]))


_BOUNDS: Final = (
    ("minimum", "at least"),
    ("maximum", "at most"),
    ("minLength", "length at least"),
    ("maxLength", "length at most"),
    ("default", "default"),
)
