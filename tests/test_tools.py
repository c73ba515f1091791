"""Functions that a model calls: calls, results and errors."""

from __future__ import annotations

import asyncio
import json
import pickle
import re
from collections.abc import Sequence
from typing import Any, ClassVar, final

import pytest
import torch
from PIL import Image

from mmgrpo.data.audio_loading import encode_wav
from mmgrpo.data.clips import encoded
from mmgrpo.data.replies import plain_reply, reply_of
from mmgrpo.environment import Turn
from mmgrpo.errors import ConfigError, DataError
from mmgrpo.samples import MEDIA
from mmgrpo.tool_calls import AssistantMessage, FunctionCall, description
from mmgrpo.tools import ToolEnvironment, ToolObjectEnvironment, schema_of
from mmgrpo.types import Audio, Prompt, Video
from tests.audio_signals import tone


def divide(a: int, b: int) -> float:
    """Divides.

    Args:
        a: what is divided.
        b: by what.

    Returns:
        The quotient.
    """
    return a / b


def place(city: str) -> str:
    """Says where a city is.

    Args:
        city: its name.

    Returns:
        The country.
    """
    return {"Oslo": "Norway"}[city]


def bare(x):
    return x


def call(name: str, **arguments: object) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def test_calls_return_their_results() -> None:
    tools = ToolEnvironment([divide, place])
    turn = tools.step(f"First {call('divide', a=3, b=4)} and {call('place', city='Oslo')}")
    assert (turn.text, turn.role, turn.done, turn.reward) == ("0.75\nNorway", "tool", False, None)
    assert tools.step("It is 0.75.").done


def repeat(word: str, times: int) -> str:
    """Repeats a word.

    Args:
        word: the word.
        times: how often.

    Returns:
        The words.
    """
    return word * times


async def repeat_later(word: str, times: int) -> str:
    """Repeats a word; its first call fails.

    Args:
        word: the word.
        times: how often.

    Returns:
        The words.
    """
    if word not in REPEATED:
        REPEATED.append(word)
        raise OSError("not yet")
    return word * times


REPEATED: list[str] = []


def test_integer_arguments_reach_functions_as_integers() -> None:
    tools = ToolEnvironment([repeat, repeat_later], retries=1)
    calls = [call(name, word="ab", times=2.0) for name in ("repeat", "repeat_later")]
    turn = tools.step("".join(calls))
    assert [result.text for result in turn.results] == ["abab", "abab"]
    assert [result.arguments["times"] for result in turn.results] == [2.0, 2.0]


def test_signatures_are_those_of_the_opening_turn() -> None:
    (tool,) = ToolEnvironment([divide]).reset(Prompt("3 / 4?")).tools
    text = description([tool])
    schema = json.loads(text.split("<tools>\n")[1].split("\n</tools>")[0])
    assert tool == {"type": "function", "function": schema}
    assert schema["name"] == "divide"
    assert schema["parameters"]["required"] == ["a", "b"]
    assert schema["parameters"]["properties"]["b"] == {"type": "integer", "description": "by what."}
    assert '{"name": "...", "arguments": {...}}' in text
    assert ToolEnvironment([divide], describe=False).reset(Prompt("3 / 4?")).ends


def test_functions_may_be_named() -> None:
    tools = ToolEnvironment(["python:tests.test_tools:divide"])
    assert tools.step(call("divide", a=1, b=2)).text == "0.5"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (call("divide", a=1, b=0), "ZeroDivisionError: division by zero"),
        (call("multiply", a=1, b=0), "KeyError: there is no function 'multiply'; known are divide, place"),
        (call("divide", a=1), "TypeError: divide: missing arguments: b"),
        (call("divide", a=1, b=2, c=3), "TypeError: divide: unknown arguments: c; expected are a, b"),
        (call("divide", a="1", b=2), "TypeError: divide: a must be integer, got '1'"),
        (call("divide", a=True, b=2), "TypeError: divide: a must be integer, got True"),
        (call("divide", a=1.5, b=2), "TypeError: divide: a must be integer, got 1.5"),
        ("<tool_call>divide(1, 2)</tool_call>", "the call is no JSON"),
        ("<tool_call>[1]</tool_call>", 'a call is {"name": .., "arguments": {..}}'),
        ('<tool_call>{"name": "divide", "arguments": [1, 2]}</tool_call>', "arguments must be an object, got list"),
        ('<tool_call>{"name": "divide", "arguments": {"a": 1, "b": 2}}', "the call is not closed by </tool_call>"),
    ],
)
def test_errors_of_calls_are_returned(text: str, error: str) -> None:
    turn = ToolEnvironment([divide, place]).step(text)
    assert not turn.done
    assert error in json.loads(turn.text)["error"]
    assert [result.failed for result in turn.results] == [True]


def test_a_bad_call_does_not_cost_the_others() -> None:
    turn = ToolEnvironment([divide]).step(
        call("divide", a=1, b=0) + call("divide", a=1, b=2) + "<tool_call>x</tool_call>"
    )
    assert [(result.name, result.failed) for result in turn.results] == [
        ("divide", True),
        ("divide", False),
        ("", True),
    ]
    assert turn.results[1].text == "0.5"
    assert turn.results[1].arguments == {"a": 1, "b": 2}
    unread = [FunctionCall(error="the turn cannot be read")]  # by the response template of the tokenizer
    texts = [call("divide", a=1, b=2) + "<tool_call>x</tool_call>", "<tool_call>x</tool_call>"]
    turns = [ToolEnvironment([divide]).respond(AssistantMessage(text, calls=unread)) for text in texts]
    assert [[result.failed for result in turn.results] for turn in turns] == [[False, True], [True]]
    assert (turns[0].results[0].text, turns[1].text) == ("0.5", '{"error": "ValueError: the turn cannot be read"}')


def weather(city: str) -> dict[str, str]:
    """Returns the weather.

    Args:
        city: 城市.
    """
    return {"城市": city}


def test_characters_of_results_errors_and_descriptions_are_not_escaped() -> None:
    tools = ToolEnvironment([weather, place])
    turn = tools.step(call("weather", city="北京") + call("place", city="北京"))
    assert [result.text for result in turn.results] == ['{"城市": "北京"}', '{"error": "KeyError: 北京"}']
    assert "城市" in description(tools.reset(Prompt("?")).tools)


def test_calls_inside_of_reasoning_are_not_executed() -> None:
    turn = ToolEnvironment([divide]).step(f"<think>{call('divide', a=1, b=2)}</think>It is 0.5.")
    assert turn.done


def test_a_row_selects_its_tools() -> None:
    tools = ToolEnvironment([divide, place])
    only_divide = [{"type": "function", "function": dict(schema_of(divide))}]
    opening = tools.reset(Prompt("?", chat_template_kwargs={"tools": only_divide}))
    assert opening.tools == only_divide
    assert "there is no function 'place'; known are divide" in tools.step(call("place", city="Oslo")).text
    other = [{"type": "function", "function": {"name": "search"}}]
    with pytest.raises(DataError, match=r"the column tools of '\?' has search, .* add the function"):
        tools.reset(Prompt("?", chat_template_kwargs={"tools": other}))


def run(code: str) -> str:
    """Runs code.

    Args:
        code: the code.

    Returns:
        The output.
    """
    return f"ran {code!r}"


def test_code_blocks_are_calls() -> None:
    tools = ToolEnvironment([run], fences={"python": "run"})
    turn = tools.step("First\n```python\nprint(1)\n```\nthen\n```text\nno code\n```\n```python\nx = 2\n```")
    assert turn.text == "ran 'print(1)\\n'\nran 'x = 2\\n'"
    assert "the code block is not closed by ```" in tools.step("```python\nprint(1)").text
    assert tools.step("```text\nno code\n```").done
    assert tools.step(f"{call('run', code='1')}```python\n2\n```").text == "ran '1'"
    with pytest.raises(ConfigError, match="fences names no tool: walk; tools are run"):
        ToolEnvironment([run], fences={"python": "walk"})


def test_invalid_tools_raise() -> None:
    with pytest.raises(ConfigError, match="one or more functions"):
        ToolEnvironment([])
    with pytest.raises(ConfigError, match="with distinct names"):
        ToolEnvironment([divide, divide])
    with pytest.raises(ConfigError, match=r"the tool bare cannot be described: .*annotate its arguments"):
        ToolEnvironment([bare])


def patch(color: str) -> Image.Image:
    """Returns a colored patch.

    Args:
        color: its color.

    Returns:
        The image.
    """
    return Image.new("RGB", (4, 4), color)


def described_patch(color: str) -> dict[str, Any]:
    """Returns a colored patch with its name.

    Args:
        color: its color.

    Returns:
        The name and the image.
    """
    return {"name": color, "views": [patch(color), patch("white")]}


def test_images_of_results_are_those_of_the_turn() -> None:
    tools = ToolEnvironment([patch, described_patch])
    turn = tools.step(call("patch", color="red") + call("described_patch", color="blue") + call("patch", color="no"))
    colors = [image.getpixel((0, 0)) for image in turn.images]
    assert colors == [(255, 0, 0), (0, 0, 255), (255, 255, 255)]
    described, error = turn.text.split("\n")
    assert json.loads(described) == {"name": "blue", "views": ["(image)", "(image)"]}
    assert "unknown color specifier: 'no'" in json.loads(error)["error"]
    alone = tools.step(call("patch", color="red"))
    assert (alone.text, len(alone.images), alone.role, alone.ends) == ("", 1, "tool", False)


async def lookup(word: str) -> str:
    """Looks a word up.

    Args:
        word: the word.

    Returns:
        Its meaning.
    """
    started.append(word)
    if len(started) < 2:
        await second.wait()  # of the other call: both run side by side
    second.set()
    return f"meaning of {word}"


started: list[str] = []
second = asyncio.Event()


def test_coroutines_of_a_turn_run_side_by_side() -> None:
    turn = ToolEnvironment([lookup, divide]).step(
        call("lookup", word="a") + call("divide", a=1, b=2) + call("lookup", word="b")
    )
    assert turn.text == "meaning of a\n0.5\nmeaning of b"
    assert started == ["a", "b"]


def test_results_with_media_survive_a_checkpoint() -> None:
    tools = ToolEnvironment([patch, recording])
    calls = [call("patch", color="red"), call("patch", color="no"), call("recording", form="blocks")]
    turn = tools.step("".join([*calls, call("recording", form="file")]))
    restored = reply_of(plain_reply(turn))
    assert restored is not None
    fields = ("name", "text", "num_images", "num_videos", "num_audios", "failed")
    assert [[getattr(r, field) for field in fields] for r in restored.results] == [
        [getattr(r, field) for field in fields] for r in turn.results
    ]
    assert [(result.num_images, result.num_videos) for result in restored.results] == [(1, 0), (0, 0), (0, 1), (0, 1)]
    frames, file = restored.videos
    assert (frames.frame_rate, [frame.tobytes() for frame in frames], file) == (
        4.0,
        [frame.tobytes() for frame in turn.videos[0]],
        turn.videos[1],
    )
    assert torch.equal(restored.audios[0].values, turn.audios[0].values)


def viewed(width: int) -> list[dict[str, Any]]:
    """Returns a view as content blocks.

    Args:
        width: its width in pixels.

    Returns:
        The blocks.
    """
    image = Image.new("RGB", (width, 2))
    return [{"type": "image", "image": image}, {"type": "text", "text": f"{width} wide"}]


def test_content_blocks_are_text_and_images_of_the_turn() -> None:
    turn = ToolEnvironment([viewed]).step(call("viewed", width=3))
    assert (turn.text, [image.size for image in turn.images]) == ("3 wide", [(3, 2)])


def recording(form: str) -> Any:
    """Returns media and their duration.

    Args:
        form: their form.

    Returns:
        The media.
    """
    frames = [Image.new("RGB", (4, 2), color) for color in ("red", "blue", "green")]
    audio = tone(440, rate=8000, duration_s=0.5)
    forms: dict[str, Any] = {
        "blocks": [
            {"type": "text", "text": "1 s"},
            {"type": "audio", "audio": audio.values[0].numpy(), "sampling_rate": 8000},
            {"type": "video", "video": frames, "sample_fps": 4.0},
        ],
        "block": {"type": "audio", "audio": encode_wav(audio)},
        "alone": audio,
        "row": {"array": [0.0, 0.5], "sampling_rate": 8000, "path": None},
        "video": Video(frames, 3.0),
        "file": {"type": "video", "video": encoded(frames * 3, 8.0)},
        "inside": {"name": "beep", "parts": [audio, {"type": "video", "video": frames}], "see": {"type": "image"}},
        "schema": {"type": ["string", "null"], "audio": None, "parts": [{"type": "video", "video": "no medium"}]},
        "long": tone(440, rate=8000, duration_s=1.5),
        "frames": Video(frames * 3, 9.0),
        "large": Video([Image.new("RGB", (40, 20))] * 2, 1.0),
    }
    return forms[form]


def turn_of(form: str, **limits: Any) -> Turn:
    return ToolEnvironment([recording], **limits).step(call("recording", form=form))


def test_audio_and_videos_of_results_are_those_of_the_turn() -> None:
    turn = ToolEnvironment([recording, patch]).step(
        call("recording", form="blocks") + call("patch", color="red") + call("recording", form="alone")
    )
    counts = [(result.num_images, result.num_videos, result.num_audios) for result in turn.results]
    assert (turn.text, counts) == ("1 s", [(0, 1, 1), (1, 0, 0), (0, 0, 1)])
    assert [len(part.videos) + 2 * len(part.audios) for part in turn.result_turns] == [3, 0, 2]
    assert [audio.duration_s for audio in turn.audios] == [0.5, 0.5]
    assert (turn.videos[0].frame_rate, turn.videos[0][1].getpixel((0, 0))) == (4.0, (0, 0, 255))


@pytest.mark.parametrize(
    ("form", "text", "media"),
    [
        ("block", "", ["audios"]),
        ("alone", "", ["audios"]),
        ("row", "", ["audios"]),
        ("video", "", ["videos"]),
        ("file", "", ["videos"]),
        ("inside", '{"name": "beep", "parts": ["(audio)", "(video)"], "see": {"type": "image"}}', ["videos", "audios"]),
        (
            "schema",
            '{"type": ["string", "null"], "audio": null, "parts": [{"type": "video", "video": "no medium"}]}',
            [],
        ),
    ],
)
def test_media_of_a_result_in_any_form(form: str, text: str, media: list[str]) -> None:
    turn = turn_of(form)
    assert not turn.results[0].failed
    assert (turn.text, [name for name in MEDIA.values() if len(getattr(turn, name))]) == (text, media)


def test_media_beyond_the_limits_are_reduced_with_a_note() -> None:
    audio = turn_of("long", max_seconds=1)
    assert (audio.text, audio.audios[0].duration_s) == ("[the audio of 1.5 s is cut off after 1 s]", 1.0)
    frames = turn_of("frames", max_frames=3)
    assert frames.text == "[3 of the 9 frames of the video are shown]"
    assert (len(frames.videos[0]), frames.videos[0].frame_rate, frames.videos[0].duration_s) == (3, 3.0, 1.0)
    large = turn_of("large", max_pixels=100)
    assert (large.text, large.videos[0][1].size) == ("[the frames of 40 x 20 pixels are reduced to 20 x 10]", (20, 10))
    assert "the video of 1.1 s is longer than 1 s" in turn_of("file", max_seconds=1).text
    with pytest.raises(ConfigError, match="max_seconds must be positive, got 0"):
        ToolEnvironment([recording], max_seconds=0)


@final
class Player:
    """Plays something at first."""

    def reset(self, **columns: Any) -> Any:
        """Returns the opening."""
        return [recording("alone"), {"type": "text", "text": f"{len(columns['audios'])} before"}]

    def again(self) -> Audio:
        """Plays it again."""
        return recording("alone")


def test_objects_may_play_audio_at_reset_and_in_their_tools() -> None:
    environment = ToolObjectEnvironment(Player)
    opening = environment.reset(Prompt("listen", audios=[tone()]))
    assert (opening.text, len(opening.audios), [tool["function"]["name"] for tool in opening.tools]) == (
        "1 before",
        1,
        ["again"],
    )
    assert len(environment.step(call("again")).audios) == 1


def test_videos_survive_a_process() -> None:
    video = pickle.loads(pickle.dumps(Video([Image.new("RGB", (2, 2), "red")] * 3, 4)))
    assert (len(video), video.frame_rate, video[0].getpixel((0, 0)), len(video[1:])) == (3, 4, (255, 0, 0), 2)


def broken(medium: str) -> Any:
    """Returns a medium that cannot be opened.

    Args:
        medium: its kind.

    Returns:
        The medium.
    """
    media: dict[str, Any] = {
        "audio": {"type": "audio", "audio": [0.0] * 10},
        "video": [{"type": "video", "video": b"no video"}],
        "frames": [{"type": "video", "video": []}],
        "option": [{"type": "video", "video": ["a.png"], "max_pixels": 4}],
        "rate": [{"type": "video", "video": ["a.png"], "sample_fps": 0}],
    }
    return media[medium]


@pytest.mark.parametrize(
    ("medium", "error"),
    [
        ("audio", "audio must be a path, bytes, base64, .* got a list"),
        ("video", "the video of 8 bytes cannot be opened as a video"),
        ("frames", "ValueError: the video has no frames"),
        ("option", "TypeError: the options max_pixels of the video of a result are not supported: remove them"),
        ("rate", "frame_rate must be a positive number of frames per second, got 0"),
    ],
)
def test_media_that_cannot_be_opened_are_an_error_that_the_model_reads(medium: str, error: str) -> None:
    turn = ToolEnvironment([broken]).step(call("broken", medium=medium))
    assert (turn.results[0].failed, turn.num_media) == (True, 0)
    assert re.search(error, json.loads(turn.text)["error"])


class Counter:
    """An object in the form of TRL's ``environment_factory``."""

    closed: ClassVar[int] = 0

    def reset(self, **kwargs: Any) -> str:
        self.target, self.value = int(kwargs["target"]), 0
        return f"Count to {self.target}."

    def increment(self, step: int) -> int:
        """Increments the counter.

        Args:
            step: by how much.

        Returns:
            The value.
        """
        self.value += step
        return self.value

    def get_reward(self) -> float:
        return float(self.value == self.target)

    async def close(self) -> None:
        Counter.closed += 1

    def _hidden(self) -> None: ...


def test_public_methods_of_an_object_are_tools() -> None:
    environments = [ToolObjectEnvironment(Counter) for _ in range(2)]
    opening = environments[0].reset(Prompt("go", columns={"target": "3"}))
    assert opening.text == "Count to 3."
    assert [tool["function"]["name"] for tool in opening.tools] == ["increment"]
    environments[1].reset(Prompt("go", columns={"target": "3"}))
    assert [environments[0].step(call("increment", step=n)).text for n in (1, 2)] == ["1", "3"]
    assert "TypeError" in environments[0].step(call("increment")).text
    ends = [environment.step("done") for environment in environments]
    assert [(end.done, end.reward) for end in ends] == [(True, 1.0), (True, 0.0)]
    environments[0].close()
    assert Counter.closed == 1


class Cropper:
    def reset(self, image: Image.Image, images: Sequence[Image.Image], label: str) -> str:
        self.image = image
        return f"{len(images)} {label}"

    def crop(self, size: int) -> Image.Image:
        """Crops the image.

        Args:
            size: sides in pixels.
        """
        return self.image.crop((0, 0, size, size))


def test_an_object_receives_the_images_of_the_row() -> None:
    environment = ToolObjectEnvironment(Cropper)
    images = [Image.new("RGB", (8, 6), color) for color in ("red", "blue")]
    assert environment.reset(Prompt("?", images=images, columns={"label": "cards"})).text == "2 cards"
    (crop,) = environment.step(call("crop", size=2)).images
    assert (crop.size, crop.getpixel((0, 0))) == ((2, 2), (255, 0, 0))


def test_an_object_without_reset_is_an_error() -> None:
    with pytest.raises(ConfigError, match="object has no method reset, which begins a conversation"):
        ToolObjectEnvironment(object)
