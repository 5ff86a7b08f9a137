"""Python functions as tools."""

import asyncio
from typing import Annotated

from pydantic import Field

import weftline
from weftline.tools import Happened, Injected, Unknown, WillNotHappen

PAID: dict[str, int] = {}
MOVED: set[str] = set()


@weftline.tool(effect="read", timeout_s=10)
async def stock(sku: str, warehouse: str = "main") -> dict[str, str | int]:
    """How many pieces of an article are in stock.

    Args:
        sku: The article number.
        warehouse: Name of the warehouse.
    """
    return {"sku": sku, "warehouse": warehouse, "pieces": 12}


@weftline.tool(effect="idempotent")
def pay(order: int, cents: Annotated[int, Field(ge=1)], context: weftline.ToolContext) -> str:
    """Pays an order.

    Args:
        order: Number of the order.
        cents: The amount.
    """
    if order < 0:
        raise weftline.ToolFailed(f"There is no order {order}.")
    PAID.setdefault(context.idempotency_key, cents)
    return f"Order {order} is paid."


@weftline.tool(effect="read")
def invoices(customer: str, tenant: Injected[str], call_id: Injected[str]) -> str:
    """The invoices of a customer."""
    return f"{tenant}/{customer}: 2 invoices ({call_id})"


def moved(box: int, context: weftline.ToolContext) -> Happened | WillNotHappen | Unknown:
    """Asked after a crash whether a call of `move` took place."""
    if context.idempotency_key in MOVED:
        return Happened(f"Box {box} is moved.")
    return WillNotHappen()


@weftline.tool(effect="reconcile", reconcile=moved)
def move(box: int, context: weftline.ToolContext) -> str:
    """Moves a box to the exit."""
    MOVED.add(context.idempotency_key)
    return f"Box {box} is moved."


@weftline.tool(effect="read", blocking=False)
def gross(net_cents: int, vat_percent: float = 19.0) -> int:
    """Adds the value added tax to an amount in cents."""
    return round(net_cents * (1 + vat_percent / 100))


async def main() -> None:
    context = weftline.ToolContext("run_1", "0.0", "key_1", "pay", "default")
    args = await pay.prepare('{"cents": "250", "order": 7}')
    print(args.decode())
    print((await pay.invoke(args, context)).parts)
    print(gross(100))
    print(await move.reconcile(b'{"box":3}', context))
    await move.invoke(b'{"box":3}', context)
    print(await move.reconcile(b'{"box":3}', context))


if __name__ == "__main__":
    asyncio.run(main())
