"""Code that nobody has to trust, next to a function that it may use."""

from __future__ import annotations

import asyncio

from weftline.sandbox import Sandbox

PRICES = {"apple": 0.4, "pear": 0.6}


async def price(fruit: str) -> float:
    return PRICES[fruit]


TYPESCRIPT = """
import { price } from 'shop';
import { total } from './sums.ts';

export default async (basket: Record<string, number>): Promise<number> => {
  const lines = Object.entries(basket).map(async ([fruit, count]) => count * (await price(fruit)));
  report({ lines: lines.length });
  return total(await Promise.all(lines));
};
"""

PYTHON = """
from shop import price

async def default(basket):
    print("pricing", len(basket))
    return sum([count * await price(fruit) for fruit, count in basket.items()])
"""


async def main() -> None:
    async with Sandbox() as sandbox:
        result = await sandbox.run_code(
            TYPESCRIPT,
            args=[{"apple": 5, "pear": 10}],
            imports={"shop": {"price": price}},
            modules={"./sums.ts": "export const total = (all: number[]) => all.reduce((a, b) => a + b, 0)"},
            report=lambda value: print("reported", value),
        )
        print(result.status, result.result)
        assert result.result == 8.0

        result = await sandbox.run_code(
            PYTHON, language="python", args=[{"apple": 5, "pear": 10}], imports={"shop": {"price": price}}
        )
        print(result.status, result.result, result.logs[0].args)
        assert result.result == 8.0

        wrong = await sandbox.run_code("export default () => price('fig')", globals={"price": price})
        assert wrong.status == "error" and wrong.error is not None
        print(wrong.error.name, wrong.error.message)

        endless = sandbox.run_code("for (;;);\nexport default 1")
        endless.terminate("It took too long.")
        print((await endless).status)


if __name__ == "__main__":
    asyncio.run(main())
