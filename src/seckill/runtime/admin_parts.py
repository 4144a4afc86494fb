"""The operators' side of a web process, joined to the stores."""

from seckill.runtime.bootstrap import Stores
from seckill.runtime.sale_desk import SaleDesk
from seckill.runtime.user_desk import UserDesk
from seckill.web.admin.ports import AdminParts

__all__ = ["admin_parts"]


def admin_parts(stores: Stores) -> AdminParts:
    """What the operators' API works with: the same functions that the commands call."""
    return AdminParts(
        tokens=stores.ledger.admins, users=UserDesk(stores.ledger), sales=SaleDesk(stores)
    )
