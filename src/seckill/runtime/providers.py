"""Which payment provider the settings ask for. Apart from the web's desk: the reaper has no web."""

import importlib
from collections.abc import Sequence

from seckill.domain.clock import Clock
from seckill.domain.errors import InvalidValue
from seckill.payment.provider import PaymentProvider
from seckill.payment.sandbox import Sandbox
from seckill.runtime.errors import ProviderUnusable
from seckill.runtime.settings import Settings

__all__ = ["open_provider", "webhook_secrets"]


def open_provider(
    settings: Settings, clock: Clock, *, base_url: str = ""
) -> PaymentProvider | None:
    """The payment provider of the settings; None where nobody takes money.

    Args:
        base_url: where this service is reached, for the sandbox's page.

    Raises:
        ProviderUnusable: what the settings name cannot be loaded.
    """
    named = settings.payment_provider
    if named == "none":
        return None
    if named == "sandbox":
        return Sandbox(settings.data.sandbox, base_url, clock)
    module, _, name = named.partition(":")
    try:
        make = getattr(importlib.import_module(module), name)
        provider: PaymentProvider = make()
    except Exception as error:  # an error of somebody else's program, whatever it is
        raise ProviderUnusable(named, f"{type(error).__name__}: {error}") from error
    return provider


def webhook_secrets(settings: Settings, provider: PaymentProvider) -> Sequence[str]:
    """The secrets that the provider's news may be signed with: of the settings, and its own.

    Raises:
        ProviderUnusable: there is none, or one that cannot serve.
    """
    # Loads the library of the signatures, which only a web process needs.
    from seckill.payment.webhook import check_secret  # noqa: PLC0415

    own = settings.payment_webhook_secrets.get_secret_value().split()
    found = [*own, *provider.webhook_secrets]
    try:
        for secret in found:
            check_secret(secret)
    except InvalidValue as invalid:
        raise ProviderUnusable(settings.payment_provider, f"its secrets: {invalid.rule}") from None
    if not found:
        raise ProviderUnusable(
            settings.payment_provider, "no secret of its webhook: set payment_webhook_secrets"
        )
    return found
