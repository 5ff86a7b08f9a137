from weftline.threads import ThreadState, VariableDefinition, define_tool
from weftline.tools import Happened, WillNotHappen

from ...shared import orders


async def was_refunded(state: ThreadState, order: str) -> Happened | WillNotHappen:
    """Asked after a crash: the bank knows whether it has paid."""
    receipt = orders.payment_for(await state.env("LEDGER"), order)
    return WillNotHappen() if receipt is None else Happened(await _kept(state, order, receipt))


@define_tool(
    effect="reconcile",
    reconcile=was_refunded,
    variables=[VariableDefinition("LEDGER", required=True, description="The file of the bank.")],
)
async def refund(state: ThreadState, order: str, cents: int) -> str:
    """Pays back part of an order."""
    receipt = orders.pay(await state.env("LEDGER"), order, cents, once=state.idempotency_key)
    return await _kept(state, order, receipt)


async def _kept(state: ThreadState, order: str, receipt: str) -> str:
    await state.write_file(f"/receipts/{order}.json", receipt, "application/json")
    await state.set_value("refunded", order)
    return f"Order {order} is paid back."
