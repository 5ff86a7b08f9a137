from datetime import datetime

import msgspec
import pytest

from weftline.messages import joined_text
from weftline.tools.base import Tool, ToolContext, ToolOutput
from weftline.tools.builtin import builtin_tools, calculator, current_time


async def call(subject: Tool, **args: object) -> ToolOutput:
    final = await subject.prepare(msgspec.json.encode(args).decode())
    return await subject.invoke(final, ToolContext("r", "0.0", "k", subject.spec.name, "default"))


def test_builtin_tools_change_nothing_and_run_side_by_side() -> None:
    tools = builtin_tools()
    assert list(tools) == ["ask_user", "calculator", "current_time", "present_plan"]
    for name, tool in tools.items():
        assert (tool.spec.name, tool.effect, tool.concurrent) == (name, "read", True)
        assert tool.spec.description


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("1 + 2 * 3", "7"),
        ("(1 + 2) * 3", "9"),
        ("-2 ** 2", "-4"),
        ("7 // 2 + 7 % 4", "6"),
        ("1 / 4", "0.25"),
        ("2 ** 100", str(2**100)),
        ("2 ** -1", "0.5"),
        (" sqrt(16) + abs(-1) ", "5.0"),
        ("round(2.567, 2)", "2.57"),
        ("max(1, 2, 3) - min(4, 5)", "-1"),
        ("floor(pi) + ceil(e)", "6"),
        ("log(100, 10)", "2.0"),
        ("1e3", "1000.0"),
        ("1 + " * 200 + "1", "201"),
    ],
)
async def test_the_calculator_calculates(expression: str, expected: str) -> None:
    output = await call(calculator, expression=expression)
    assert (joined_text(output.parts), output.is_error) == (expected, False)


@pytest.mark.parametrize(
    "expression",
    [
        *(
            "",
            "1 +",
            "1 / 0",
            "1 // 0",
            "(-8) ** 0.5",
            "sqrt(-1)",
            "1e308 * 10",
            "True + 1",
            "'a' * 3",
            "1j",
            "[1] * 9",
        ),
        *("__import__('os')", "().__class__", "open('x')", "x", "pi.real", "(lambda: 1)()", "min(*[1, 2])", "min(1)"),
        *("10 ** 10 ** 10", "2 ** 5000", "9 ** 9 ** 9 ** 9", "round(1, -10 ** 9)", "round(1, 0.5)", "exp(1000)"),
        *("1 if 1 else 2", "1 < 2", "1; 2", "a := 1", "max(1, key=2)", "2 ** 4000 * 2 ** 4000", "-" * 900 + "1"),
        *("(" * 400 + "1" + ")" * 400, "9" * 1001, "1+" * 400 + "1", "log()", "sqrt(1, 2)", "\x00"),
    ],
)
async def test_the_calculator_refuses_what_is_no_bounded_arithmetic(expression: str) -> None:
    output = await call(calculator, expression=expression)
    assert output.is_error
    assert "Error" not in joined_text(output.parts)


@pytest.mark.parametrize("zone", ["UTC", "utc", "Europe/Berlin", "Asia/Kolkata"])
async def test_the_current_time_is_one_instant_in_all_its_fields(zone: str) -> None:
    output = await call(current_time, timezone=zone)
    fields = msgspec.json.decode(joined_text(output.parts), type=dict[str, str | int])
    told = datetime.fromisoformat(str(fields["time"]))
    assert told.timestamp() == fields["unix_s"]
    assert told.strftime("%A") == fields["weekday"]
    assert told.utcoffset() is not None


@pytest.mark.parametrize("zone", ["Mars/Base", "../etc/passwd", "/etc/passwd", "America", "", "a\x00b"])
async def test_an_unknown_time_zone_is_an_error_result(zone: str) -> None:
    output = await call(current_time, timezone=zone)
    assert output.is_error
    assert "time zone" in joined_text(output.parts)
