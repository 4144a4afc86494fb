"""The OpenAPI document: what the framework knows, and the hot routes that it does not.

The codes and messages come out of `domain.outcomes`; a test compares the document with what the
routes really answer.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from seckill.domain.ids import ID_CHARS_MAX
from seckill.domain.outcomes import OUTCOME_TEXTS, Outcome
from seckill.domain.sale import LIMIT_PER_USER_MAX
from seckill.web.answers import RETRY_OUTCOMES
from seckill.web.hot import ORDER_ROUTE, PURCHASE_ROUTE
from seckill.web.requests import TOKEN_CHARS_MAX
from seckill.web.schemas import Problem
from seckill.web.wire import phrase

__all__ = ["LEAST_ROLE", "PROBLEM_RESPONSES", "with_hot_routes"]

Security = list[dict[str, list[str]]]

LEAST_ROLE: Final = "x-least-role"
"""What a route of the operators' API says of the least role that it takes."""

OPERATORS: Final[Mapping[str, Mapping[str, str]]] = {
    "operator": {
        "type": "http",
        "scheme": "bearer",
        "description": "the token of an operator, as `seckill admin token create` makes it",
    }
}
_PROBLEM_REF: Final = {"$ref": "#/components/schemas/Problem"}
_RETRY_AFTER: Final = {
    "Retry-After": {
        "description": "whole seconds after which to ask again",
        "schema": {"type": "string", "pattern": "^[1-9][0-9]*$"},
    }
}


def PROBLEM_RESPONSES(*statuses: int) -> dict[int | str, dict[str, Any]]:  # noqa: N802  -- reads as the constant that it stands for
    """The problem answers of one route, for the framework's ``responses=``."""
    return {
        status: {
            "model": Problem,
            "description": phrase(status),
            "content": {"application/problem+json": {"schema": _PROBLEM_REF}},
        }
        for status in statuses
    }


def with_hot_routes(
    document: dict[str, Any], schemes: Mapping[str, Mapping[str, str]]
) -> dict[str, Any]:
    """The framework's document, completed: the hot routes, and the ways to say who one is."""
    paths = document["paths"]
    security: Security = [{name: []} for name in schemes]
    for operations in paths.values():
        for operation in operations.values():
            _drop_framework_errors(operation)
            if "orders" in operation.get("tags", ()):
                operation["security"] = security
            elif LEAST_ROLE in operation:
                operation["security"] = [{name: []} for name in OPERATORS]
    paths[PURCHASE_ROUTE] = {"post": _purchase(security)}
    paths[ORDER_ROUTE] = {"get": _order(security)}
    document["paths"] = dict(sorted(paths.items()))
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    schemas["PurchaseAnswer"] = _purchase_answer()
    schemas["Problem"] = Problem.model_json_schema()
    known = (
        {**schemes, **OPERATORS} if any(path.startswith("/admin/") for path in paths) else schemes
    )
    components["securitySchemes"] = {name: dict(scheme) for name, scheme in known.items()}
    return document


def _drop_framework_errors(operation: dict[str, Any]) -> None:
    """The framework's own idea of a 422 is replaced by ours, or dropped where none can happen."""
    invalid = operation["responses"].get("422")
    if invalid and "application/json" in invalid.get("content", {}):
        invalid["content"].pop("application/json")
        if not invalid["content"]:
            del operation["responses"]["422"]
    for response in operation["responses"].values():
        content = response.get("content", {})
        if "application/problem+json" in content:
            content.pop("application/json", None)


def _purchase_answer() -> dict[str, Any]:
    return {
        "title": "PurchaseAnswer",
        "type": "object",
        "description": "The answer to a purchase request, whatever was decided.",
        "additionalProperties": False,
        "required": ["code", "message", "reservation_id"],
        "properties": {
            "code": {
                "type": "integer",
                "enum": sorted(outcome.value for outcome in Outcome),
                "description": "; ".join(
                    f"{outcome.value} {OUTCOME_TEXTS[outcome].en}" for outcome in Outcome
                ),
            },
            "message": {
                "type": "string",
                "description": "zh-CN, or English where Accept-Language wants it more",
                "enum": sorted({text for t in OUTCOME_TEXTS.values() for text in (t.zh, t.en)}),
            },
            "reservation_id": {
                "type": ["string", "null"],
                "pattern": "^[0-9a-z]{16,64}$",
                "description": "the new one (code 1), or the one held already (codes 2, 3, 9)",
            },
            "starts_at": {
                "type": "string",
                "format": "date-time",
                "description": "with code 4: when the sale begins",
            },
            "left": {
                "type": "integer",
                "minimum": 0,
                "description": "with code 7: units that are left",
            },
            "retry_after_ms": {
                "type": "integer",
                "minimum": 1,
                "description": "with codes 4, 8, -1, -2: when to ask again",
            },
        },
    }


def _problem(statuses: Iterable[int]) -> dict[str, dict[str, Any]]:
    return {
        str(status): {
            "description": phrase(status),
            "content": {"application/problem+json": {"schema": _PROBLEM_REF}},
        }
        for status in statuses
    }


def _purchase(security: Security) -> dict[str, Any]:
    responses = _problem((400, 401, 405, 408, 413, 415, 422))
    for outcome in Outcome:
        texts = OUTCOME_TEXTS[outcome]
        response = responses.setdefault(str(texts.http_status), {"description": "", "content": {}})
        text = f"code {outcome.value}: {texts.en} ({texts.zh})"
        response["description"] = "; ".join(filter(None, (response["description"], text)))
        response["content"]["application/json"] = {
            "schema": {"$ref": "#/components/schemas/PurchaseAnswer"}
        }
        headers = response.setdefault("headers", {})
        headers["Content-Language"] = {"schema": {"type": "string", "enum": ["zh-CN", "en"]}}
        if outcome in RETRY_OUTCOMES:
            headers |= _RETRY_AFTER
        if outcome is Outcome.SUCCESS:
            headers["Location"] = {
                "description": "where the purchase can be followed",
                "schema": {"type": "string", "pattern": "^/orders/[0-9a-z]{16,64}$"},
            }
            headers["Idempotency-Replayed"] = {
                "description": "true: the same answer as to the first request with this key",
                "schema": {"type": "string", "enum": ["true"]},
            }
    # The identity of the buyer may be unreadable for a while: a problem, not a decision.
    responses["503"]["content"]["application/problem+json"] = {"schema": _PROBLEM_REF}
    return {
        "tags": ["purchase"],
        "summary": "Buy",
        "description": (
            "The decision is final when it is answered: 202 means that the units are yours. A"
            " request repeated by the same user is answered with the reservation they hold."
        ),
        "operationId": "purchase",
        "security": security,
        "parameters": [
            {
                "name": "goods_id",
                "in": "path",
                "required": True,
                "schema": {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": ID_CHARS_MAX,
                    "pattern": r"^[^/\\%?#\s]+$",
                },
            },
            {
                "name": "Idempotency-Key",
                "in": "header",
                "required": False,
                "description": "names this attempt: a repetition gets the same answer",
                "schema": {"type": "string", "pattern": "^[!-~]{1,255}$"},
            },
            {
                "name": "Accept-Language",
                "in": "header",
                "required": False,
                "schema": {"type": "string"},
            },
        ],
        "requestBody": {
            "required": False,
            "content": {
                "application/json": {
                    "schema": {
                        "type": "object",
                        "additionalProperties": False,
                        "properties": {
                            "quantity": {
                                "type": "integer",
                                "minimum": 1,
                                "maximum": LIMIT_PER_USER_MAX,
                                "default": 1,
                            },
                            "token": {
                                "type": "string",
                                "maxLength": TOKEN_CHARS_MAX,
                                "description": "accepted, and without effect so far",
                            },
                        },
                    }
                }
            },
        },
        "responses": dict(sorted(responses.items())),
    }


def _order(security: Security) -> dict[str, Any]:
    return {
        "tags": ["orders"],
        "summary": "The state of one's own purchase",
        "operationId": "order",
        "security": security,
        "parameters": [
            {
                "name": "reservation_id",
                "in": "path",
                "required": True,
                "schema": {"type": "string"},
            }
        ],
        "responses": {
            "200": {
                "description": "The purchase",
                "content": {
                    "application/json": {"schema": {"$ref": "#/components/schemas/Purchased"}}
                },
            },
            **_problem((400, 401, 404, 405, 422)),
            "503": {**_problem((503,))["503"], "headers": _RETRY_AFTER},
        },
    }
