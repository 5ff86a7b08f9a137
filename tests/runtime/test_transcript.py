"""The conversation that a model gets."""

from __future__ import annotations

from weftline.runtime.transcript import Transcript

from weftline.messages import Image, Text, ToolResult, ToolResults, User

PICTURE = Image("image/png", data="aGk=")


def test_a_model_that_cannot_see_reads_in_words_that_there_was_an_image() -> None:
    transcript = Transcript([User((Text("Look:"), PICTURE))])
    blind = transcript.shown_to(vision=False)
    assert blind == [User((Text("Look:"), Text("[An image (image/png) that this model cannot see.]")))]
    transcript.messages.append(ToolResults((ToolResult("1", "camera", (PICTURE,)),)))
    assert transcript.shown_to(vision=False) is blind
    assert blind[1] == ToolResults(
        (ToolResult("1", "camera", (Text("[An image (image/png) that this model cannot see.]"),)),)
    )


def test_a_model_that_sees_or_does_not_say_gets_the_images() -> None:
    transcript = Transcript([User((PICTURE,))])
    assert transcript.shown_to(vision=True) is transcript.messages
    assert transcript.shown_to(vision=None) is transcript.messages
