from weftline.threads import ThreadState, define_tool

from ...shared import orders


@define_tool(effect="read", uses=[])
async def find_order(state: ThreadState, number: str) -> str:
    """Finds an order by its number."""
    return orders.find(number)
