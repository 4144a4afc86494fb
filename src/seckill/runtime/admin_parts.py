"""The operators' side of a web process, joined to the stores."""

from seckill.runtime.beside import Beside
from seckill.runtime.bootstrap import Stores
from seckill.runtime.letters import LetterDesk
from seckill.runtime.order_desk import OrderDesk
from seckill.runtime.proof_desk import ProofDesk
from seckill.runtime.rule_desk import RuleDesk
from seckill.runtime.sale_desk import SaleDesk
from seckill.runtime.user_desk import UserDesk
from seckill.web.admin.ports import AdminParts

__all__ = ["admin_parts"]


def admin_parts(stores: Stores) -> AdminParts:
    """What the operators' API works with: the same functions that the commands call."""
    beside = Beside(stores.settings)
    return AdminParts(
        tokens=stores.ledger.admins,
        users=UserDesk(stores.ledger),
        sales=SaleDesk(stores),
        rules=RuleDesk(stores.settings, stores.ledger.actions),
        orders=OrderDesk(stores, beside),
        letters=LetterDesk(stores, stores.ledger.actions),
        proof=ProofDesk(stores, beside),
    )
