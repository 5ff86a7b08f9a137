"""Arithmetic without `eval`: the expression is parsed, and only numbers and the operations below are evaluated."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable
from typing import Any, TypeAlias, cast

from weftline import prompts
from weftline.tools.base import ToolFailed
from weftline.tools.decorator import tool

Number: TypeAlias = int | float

MAX_CHARS = 1_000
MAX_BITS = 4_096
"""The size of the largest integer, so that no power or product takes noticeable time."""
_MAX_LEVELS = 300


@tool(effect="read", blocking=False)
def calculator(expression: str) -> int | float:
    """Evaluates an arithmetic expression.

    Supports + - * / // % **, parentheses, the constants pi, e and tau, and the functions abs, round, min, max, sqrt,
    exp, log, log2, log10, sin, cos, tan, asin, acos, atan, floor and ceil. Angles are in radians.

    Args:
        expression: For example "(3 + 4) * sqrt(2)".
    """
    if len(expression) > MAX_CHARS:
        raise ToolFailed(prompts.builtin.calculate_too_long(MAX_CHARS))
    try:
        return _value(ast.parse(expression.strip(), mode="eval").body, _MAX_LEVELS)
    except SyntaxError:
        raise ToolFailed(prompts.builtin.CALCULATE_NOT_ARITHMETIC) from None
    except ZeroDivisionError:
        raise ToolFailed(prompts.builtin.CALCULATE_BY_ZERO) from None
    except (OverflowError, MemoryError, RecursionError):
        raise ToolFailed(prompts.builtin.CALCULATE_TOO_LARGE) from None
    except (ValueError, TypeError) as error:
        raise ToolFailed(prompts.builtin.calculate_impossible(str(error))) from None


def _power(base: Number, exponent: Number) -> Number:
    if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * abs(exponent) > MAX_BITS:
        raise OverflowError
    result: object = base**exponent
    if isinstance(result, complex):
        raise ValueError("the result is not a real number")
    return cast(Number, result)


def _round(value: Number, digits: Number = 0) -> Number:
    if not isinstance(digits, int) or abs(digits) > 100:
        raise ValueError("round takes a whole number of digits, at most 100")
    return round(value, digits) if digits else round(value)


_BINARY: dict[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda left, right: left / right,
    ast.FloorDiv: lambda left, right: left // right,
    ast.Mod: operator.mod,
    ast.Pow: _power,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": abs,
    "round": _round,
    "min": min,
    "max": max,
    "sqrt": math.sqrt,
    "exp": math.exp,
    "log": math.log,
    "log2": math.log2,
    "log10": math.log10,
    "sin": math.sin,
    "cos": math.cos,
    "tan": math.tan,
    "asin": math.asin,
    "acos": math.acos,
    "atan": math.atan,
    "floor": math.floor,
    "ceil": math.ceil,
}
_CONSTANTS = {"pi": math.pi, "e": math.e, "tau": math.tau}


def _value(node: ast.expr, levels: int) -> Number:
    if not levels:
        raise ToolFailed(prompts.builtin.CALCULATE_TOO_DEEP)
    match node:
        case ast.Constant(value=bool()):
            raise ToolFailed(prompts.builtin.CALCULATE_NUMBERS_ONLY)
        case ast.Constant(value=int() | float() as number):
            return _bounded(number)
        case ast.Name(id=name) if name in _CONSTANTS:
            return _CONSTANTS[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, levels - 1)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _value(operand, levels - 1)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _bounded(_BINARY[type(op)](_value(left, levels - 1), _value(right, levels - 1)))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
            return _bounded(_FUNCTIONS[name](*(_value(arg, levels - 1) for arg in args)))
        case _:
            raise ToolFailed(prompts.builtin.calculate_unknown(ast.unparse(node)))


def _bounded(number: Number) -> Number:
    if isinstance(number, int):
        if number.bit_length() > MAX_BITS:
            raise OverflowError
    elif not math.isfinite(number):
        raise OverflowError
    return number
