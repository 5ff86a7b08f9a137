from __future__ import annotations

import msgspec
import pytest
from pydantic import BaseModel

from weftline.client import AsyncClient, Client, InvalidSpec, ParseError, RunResult, parse_output


class Weather(BaseModel):
    city: str
    degrees: int


class Forecast(msgspec.Struct):
    city: str
    degrees: int


@pytest.mark.requirement("wire.client.parse_output")
async def test_an_answer_becomes_a_value_of_the_type(client: AsyncClient) -> None:
    result = await client.run("hi", model_id="scripted:json", output_type=Weather)
    assert result.output == Weather(city="Oslo", degrees=4)
    assert parse_output(result, Weather).degrees == 4
    assert parse_output(result, Forecast) == Forecast("Oslo", 4)
    assert parse_output(result, dict[str, str | int]) == {"city": "Oslo", "degrees": 4}
    snapshot = await client.get_run(result.run_id)
    assert snapshot.spec["outputSchema"]["name"] == "Weather"
    assert snapshot.spec["outputSchema"]["schema"]["required"] == ["city", "degrees"]


def test_a_struct_is_an_output_type_too(sync_client: Client) -> None:
    result = sync_client.run("hi", model_id="scripted:json", output_type=Forecast)
    assert result.output == Forecast("Oslo", 4)


@pytest.mark.requirement("wire.client.parse_output")
@pytest.mark.parametrize("kind", [Weather, Forecast])
@pytest.mark.parametrize("text", ["It is warm.", '{"city": "Oslo"}', '{"city": 1, "degrees": "x"}', ""])
def test_a_text_that_does_not_match_is_kept(kind: type[object], text: str) -> None:
    with pytest.raises(ParseError) as caught:
        parse_output(RunResult("run_1", text), kind)
    assert caught.value.text == text


async def test_a_type_and_a_schema_exclude_each_other(client: AsyncClient) -> None:
    with pytest.raises(InvalidSpec):
        await client.run("hi", output_type=Weather, output_schema={"schema": {}})
