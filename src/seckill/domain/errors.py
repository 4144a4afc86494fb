"""The root of every error tree of the project.

Each room draws its own tree at the top of its ``errors.py``::

    SeckillError
    ├── InvalidValue         a value from outside breaks a rule: names the field and the rule
    ├── admission.errors     StockUnavailable, Fenced, ...
    ├── payment.errors       ProviderAway, BadSignature, ...
    ├── ledger.errors        LedgerUnavailable, SaleExists, ...
    ├── pipeline.errors      Unreadable, ...
    └── runtime.errors       SettingsContradict, PartMissing, ...
"""

__all__ = ["InvalidValue", "SeckillError"]


class SeckillError(Exception):
    """Anything that this project raises on purpose."""


class InvalidValue(SeckillError):  # noqa: N818  -- reads as what it is: this value is invalid
    """A value from outside breaks a rule.

    Attributes:
        field: the name of the value as the caller wrote it.
        rule: the rule in one sentence, fit to be shown to the caller.
    """

    def __init__(self, field: str, rule: str) -> None:
        super().__init__(f"{field}: {rule}")
        self.field = field
        self.rule = rule
