"""What can go wrong between this service and a payment provider.

::

    SeckillError
    └── PaymentError
        ├── ProviderAway       it cannot answer now; retryable, every call may be repeated
        ├── ProviderRefused    it will not do this; calling again gives the same answer
        ├── BadSignature       a message that is not the provider's, or is too old to be believed
        └── UnreadableNews     the provider's message, and not what it should look like
"""

from seckill.domain.errors import SeckillError

__all__ = ["BadSignature", "PaymentError", "ProviderAway", "ProviderRefused", "UnreadableNews"]


class PaymentError(SeckillError):
    """Anything that this room raises."""


class ProviderAway(PaymentError):  # noqa: N818  -- the field's word for it
    """The provider cannot answer now. Every call of the port may be made again."""


class ProviderRefused(PaymentError):  # noqa: N818  -- the provider says no, nothing broke
    """The provider will not do this; calling again gives the same answer."""


class BadSignature(PaymentError):  # noqa: N818  -- says what is wrong
    """A message was not signed by the provider, or long ago, or by a clock that is far off."""


class UnreadableNews(PaymentError):  # noqa: N818  -- says what is wrong
    """A signed message that breaks a rule.

    Attributes:
        field: the name of the value that is wrong.
        rule: the rule in one sentence.
    """

    def __init__(self, field: str, rule: str) -> None:
        super().__init__(f"{field}: {rule}")
        self.field = field
        self.rule = rule
