"""Audio in any form: opened, checked, written, reported, and sent to reward servers."""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import pickle
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow
import pytest
import torch
from datasets import Audio as AudioFeature
from datasets import Dataset, DatasetInfo, Features, Value

from mmgrpo.data.audio_loading import audio_from_array, encode_wav, load_audio, resample_audio
from mmgrpo.data.keys import prompt_keys
from mmgrpo.data.prompt_loading import load_prompts
from mmgrpo.data.spectrograms import SPECTRUM, WAVE, WIDTH, spectrogram
from mmgrpo.errors import DataError
from mmgrpo.runs.prompt_samples import PromptSamples, write_prompt_samples
from mmgrpo.runs.sample_files import write_samples
from mmgrpo.serving.wire import JSON, MIN_PIXELS, Form, pack_samples, unpack_request
from mmgrpo.types import Audio, Prompt, Sample, Scores
from tests.audio_signals import silence, tone

HALF_STEP = 0.5 / 2**15
NO_SCORES = {"names": (), "weight_R": torch.ones(0)}


def scores(count: int) -> Scores:
    return Scores(value_BR=torch.zeros(count, 0), valid_BR=torch.zeros(count, 0).bool(), **NO_SCORES)


def same(audio: Any, expected: Audio, *, within: float = 0.0) -> bool:
    opened = load_audio(audio)
    gap = (opened.values - expected.values).abs().max() if opened.values.shape == expected.values.shape else 1.0
    return opened.sampling_rate == expected.sampling_rate and float(gap) <= within


@pytest.mark.parametrize(
    ("values", "rate", "message"),
    [
        (np.zeros((1, 4)), 8000, "float32 tensor on the CPU, got a ndarray"),
        (torch.zeros(1, 4, dtype=torch.float64), 8000, "got torch.float64 on cpu"),
        (torch.zeros(4), 8000, r"must be \(channels, samples\), at least one of each, got \(4,\)"),
        (torch.zeros(1, 0), 8000, r"got \(1, 0\)"),
        (torch.full((1, 4), 1.5), 8000, "from -1 to 1"),
        (torch.full((1, 4), float("nan")), 8000, "from -1 to 1"),
        (torch.zeros(1, 4), 0, "integer of 1 to 768000 Hz, got 0"),
        (torch.zeros(1, 4), 8000.0, "got 8000.0"),
    ],
)
def test_invalid_audio_raises(values: Any, rate: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        Audio(values, rate)


def test_audio_of_any_form(tmp_path: Path) -> None:
    sound = tone(channels=2)
    data = encode_wav(sound)
    (tmp_path / "a.wav").write_bytes(data)
    text = base64.b64encode(data).decode()
    assert load_audio(sound) is sound
    assert sound.duration_s == 0.5
    forms = [
        tmp_path / "a.wav",
        str(tmp_path / "a.wav"),
        f"file://{tmp_path}/a.wav",
        data,
        text,
        f"data:audio/wav;base64,{text}",
        {"bytes": data, "path": None},
        {"path": str(tmp_path / "a.wav")},
        {"data": text, "format": "wav"},
    ]
    assert all(same(form, sound, within=HALF_STEP) for form in forms)
    array = sound.values.numpy()
    for form in (array, array.T, array.astype(np.float64), array.tolist()):
        assert same({"array": form, "sampling_rate": 8000}, sound)
    levels = (array * 2**15).astype(np.int16)
    assert same({"array": levels, "sampling_rate": np.int64(8000)}, sound, within=2 * HALF_STEP)


def test_decoded_audio_of_datasets_is_loaded() -> None:
    @dataclasses.dataclass
    class Decoder:  # of torchcodec, which does not come with us
        data: torch.Tensor
        sample_rate: int

        def get_all_samples(self) -> Decoder:
            return self

    assert same(Decoder(tone().values, 8000), tone())


def test_values_beyond_one_are_cut_off() -> None:
    assert audio_from_array([0.5, 3.0, -2.0], 8).values.tolist() == [[0.5, 1.0, -1.0]]


@pytest.mark.parametrize("encoder", ["flac", "mp3"])
def test_compressed_files(tmp_path: Path, encoder: str) -> None:
    import av

    sound = tone(440, rate=16000, duration_s=1.0)
    name, form = {"flac": ("flac", "s16"), "mp3": ("libmp3lame", "fltp")}[encoder]
    with av.open(str(tmp_path / f"a.{encoder}"), "w") as container:
        stream: Any = container.add_stream(name, rate=16000, layout="mono", format=form)
        frame = av.AudioFrame.from_ndarray(sound.values.numpy(), format="fltp", layout="mono")
        frame.sample_rate = 16000
        resampler = av.AudioResampler(format=stream.format, layout="mono", rate=16000, frame_size=stream.frame_size)
        for part in (*resampler.resample(frame), *resampler.resample(None), None):
            container.mux(stream.encode(part))
    audio = load_audio(tmp_path / f"a.{encoder}")
    assert audio.sampling_rate == 16000
    assert audio.duration_s == pytest.approx(1.0, abs=0.1)
    middle = audio.values[0, 2000:6000]
    spectrum = torch.fft.rfft(middle).abs()
    assert int(spectrum.argmax()) == 110  # 440 Hz x 4000 / 16000
    assert float(middle.abs().max()) == pytest.approx(0.5, abs=0.03)


def test_a_playlist_is_no_audio(tmp_path: Path) -> None:
    """ffmpeg would open what it names: other files, and URLs."""
    (tmp_path / "a.wav").write_bytes(encode_wav(tone()))
    listed = f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfile://{tmp_path}/a.wav\n#EXT-X-ENDLIST\n"
    for name, text in (("a.m3u8", listed), ("a.wav.txt", "ffconcat version 1.0\nfile a.wav\n"), ("b.wav", listed)):
        (tmp_path / name).write_text(text)
        with pytest.raises(DataError, match=f"{name} cannot be opened as audio"):
            load_audio(tmp_path / name)
        with pytest.raises(DataError, match="cannot be opened as audio"):
            load_audio(text.encode())


@pytest.mark.parametrize(
    ("form", "message"),
    [
        (3, "audio must be a path, bytes, .* got a int"),
        ({"array": [0.0, float("inf")], "sampling_rate": 8}, "not finite"),
        ({"array": [[[0.0]]], "sampling_rate": 8}, r"must be \(samples,\) or \(channels, samples\)"),
        ({"array": [0.0], "sampling_rate": None}, "sampling_rate must be an integer"),
        ("http://host/a.wav", "is a URL and nothing is fetched"),
        ("nowhere.wav", "nowhere.wav does not exist"),
        ("data:audio/wav;base64,", "without data"),
        (b"RIFFxxxx", "the audio of 8 bytes cannot be opened"),
    ],
)
def test_unreadable_audio_raises_with_the_reason(form: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_audio(form)


def test_mono_is_the_mean_of_the_channels() -> None:
    assert float(resample_audio(tone(channels=2), 16000, mono=True).values.abs().max()) == 0
    assert resample_audio(tone(), 16000).values.shape == (1, 8000)


def dataset(stored: list[dict[str, Any]]) -> Dataset:
    """Rows with a column of sounds as datasets store them; to decode them it would need torchcodec."""
    features = Features({"prompt": Value("string"), "audio": AudioFeature()})
    rows = [{"prompt": name, "audio": sound} for name, sound in zip("pq", stored, strict=True)]
    table = pyarrow.Table.from_pylist(rows, schema=pyarrow.schema(features.type))
    return Dataset(table, info=DatasetInfo(features=features))


class TestRows:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        for number in (1, 2):
            (tmp_path / f"{number}.wav").write_bytes(encode_wav(tone(220 * number)))
        return tmp_path

    def read(self, folder: Path, row: dict[str, Any]) -> Prompt:
        (folder / "rows.jsonl").write_text(json.dumps(row))
        return load_prompts(folder / "rows.jsonl")[0]

    def test_columns(self, folder: Path) -> None:
        prompt = self.read(folder, {"prompt": "what?", "audio": "1.wav", "answer": "220"})
        assert (prompt.audios, prompt.columns, prompt.messages) == ((str(folder / "1.wav"),), {"answer": "220"}, None)
        two = self.read(folder, {"prompt": "a <audio> and <audio>?", "audios": ["2.wav", "1.wav"]})
        assert [Path(path).name for path in two.audios] == ["2.wav", "1.wav"]
        assert two.messages is not None
        assert [part["type"] for part in two.messages[0]["content"]] == ["text", "audio", "text", "audio", "text"]
        assert two.text == "a and ?"

    @pytest.mark.parametrize(
        "part",
        [
            {"type": "audio", "audio": "1.wav"},
            {"type": "audio_url", "audio_url": {"url": "1.wav"}},
            {"type": "audio", "path": "1.wav"},
            {"type": "input_audio", "input_audio": {"data": "1.wav", "format": "wav"}},
        ],
    )
    def test_parts_of_messages(self, folder: Path, part: dict[str, Any]) -> None:
        messages = [{"role": "user", "content": [part, {"type": "text", "text": "what?"}]}]
        prompt = self.read(folder, {"prompt": messages})
        assert [Path(path).name for path in prompt.audios] == ["1.wav"]
        assert prompt.messages == [{"role": "user", "content": [{"type": "audio"}, {"type": "text", "text": "what?"}]}]

    def test_arrays(self, folder: Path) -> None:
        prompt = self.read(folder, {"prompt": "p", "audio": {"array": [0.0, 0.5], "sampling_rate": 8}})
        assert same(prompt.audios[0], Audio(torch.tensor([[0.0, 0.5]]), 8))

    def test_audio_of_a_dataset_is_decoded_on_access(self, folder: Path) -> None:
        stored = [{"bytes": encode_wav(tone()), "path": None}, {"bytes": None, "path": str(folder / "2.wav")}]
        first, two = load_prompts(dataset(stored))
        assert same(first.audios[0], tone(), within=HALF_STEP)
        assert same(pickle.loads(pickle.dumps(first.audios))[0], tone(), within=HALF_STEP)
        assert two.audios == (str(folder / "2.wav"),)

    def test_bytes_that_are_no_audio_raise_with_their_row(self) -> None:
        stored = [{"bytes": data, "path": None} for data in (encode_wav(tone()), b"nothing")]
        with pytest.raises(DataError, match=r"the dataset, row 1: .* cannot be opened as audio"):
            load_prompts(dataset(stored))

    def test_audio_is_part_of_the_key_of_a_row(self) -> None:
        keys = [prompt_keys([Prompt("p", audios=sounds)]) for sounds in ((), (tone(),), (tone(),), (silence(),))]
        assert keys[1] == keys[2]
        assert len({*keys}) == 3


def test_a_spectrogram_shows_the_frequency() -> None:
    low, high = (np.asarray(spectrogram(tone(hertz))).astype(int).sum(2) for hertz in (100, 2000))
    assert low.shape == (WAVE + SPECTRUM, WIDTH)
    rows = [int(picture[WAVE:, WIDTH // 2].argmax()) for picture in (low, high)]
    # the axis goes from 40 Hz at row 119 to 4000 Hz at row 0, logarithmically
    expected = [119 * (1 - np.log(hertz / 40) / np.log(100)) for hertz in (100, 2000)]
    assert rows == pytest.approx(expected, abs=5)


class TestFiles:
    def test_a_sample_is_a_wav_file(self, tmp_path: Path) -> None:
        frames = [spectrogram(tone())] * 2
        prompt = Prompt("hum")
        samples = [Sample(prompt, 0, 0, audio=tone(channels=2)), Sample(prompt, 0, 1, audio=tone(), video=frames)]
        write_samples(tmp_path / "samples", samples, scores(2))
        first, second = map(json.loads, (tmp_path / "samples/samples.jsonl").read_text().splitlines())
        assert (first["file"], first.get("sound")) == ("0000.wav", None)
        assert (second["file"], second["sound"]) == ("0001.mp4", "0001.wav")
        assert same(tmp_path / "samples/0000.wav", tone(channels=2), within=HALF_STEP)
        assert same(tmp_path / "samples/0001.wav", tone(), within=HALF_STEP)

    def test_audio_of_a_prompt_is_saved_next_to_its_answers(self, tmp_path: Path) -> None:
        prompt = Prompt("what?", audios=(tone(rate=48000), "nowhere.wav", tone(duration_s=31)))
        samples = [Sample(prompt, 0, n, text="a tone") for n in range(2)]
        write_samples(tmp_path / "samples/step-000000", samples, scores(2))
        lines = list(map(json.loads, (tmp_path / "samples/step-000000/samples.jsonl").read_text().splitlines()))
        assert lines[0]["sounds"] == lines[1]["sounds"]
        first, second, third = lines[0]["sounds"]
        assert second is None
        saved = load_audio(tmp_path / "samples/step-000000" / first)
        assert (saved.sampling_rate, saved.duration_s) == (16000, 0.5)
        assert load_audio(tmp_path / "samples/step-000000" / third).duration_s == 30
        assert sorted(os.listdir(tmp_path / "samples/images")) == sorted(Path(name).name for name in (first, third))

    def test_samples_of_a_prompt_have_a_sheet_of_spectrograms(self, tmp_path: Path) -> None:
        samples = [Sample(Prompt("hum"), 0, n, audio=tone(220 * (n + 1))) for n in range(2)]
        write_prompt_samples(PromptSamples(samples, scores(2), {}), tmp_path)
        assert {"0000.wav", "0001.wav", "sheet.png", "samples.jsonl"} == set(os.listdir(tmp_path))


class TestServing:
    @pytest.mark.parametrize("form", get_args(Form))
    def test_audio_arrives_exactly(self, form: Form) -> None:
        prompt = Prompt("p", audios=(tone(330, channels=2), {"array": [0.25], "sampling_rate": 8}))
        samples = [Sample(prompt, 0, 0, audio=tone(rate=44100)), Sample(prompt, 0, 1, text="x")]
        _, (first, second) = unpack_request(*pack_samples(samples, form=form))
        assert first.audio is not None
        assert same(first.audio, tone(rate=44100))
        assert second.audio is None
        assert [same(a, b) for a, b in zip(second.prompt.audios, map(load_audio, prompt.audios), strict=True)] == [
            True
        ] * 2

    def test_audio_counts_among_the_pixels(self) -> None:
        body, kind = pack_samples([Sample(Prompt("p"), 0, 0, audio=tone(duration_s=1.0))], form="png")
        assert kind == JSON
        assert unpack_request(body, JSON, max_pixels=8000)[1][0].audio is not None
        with pytest.raises(DataError, match="exceed the pixel limit of the server"):
            unpack_request(body, JSON, max_pixels=8000 - 1)
        assert MIN_PIXELS < 8000

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"values": "AAA"}, "not float32 in base64 of its shape"),
            ({"shape": [3, 1]}, "not float32 in base64 of its shape"),
            ({"shape": [4000]}, "must be .channels, samples."),
            ({"sampling_rate": -1}, "Audio.sampling_rate must be"),
            ({"tensor": "7"}, "there is no tensor '7'"),
            (
                {"shape": [1, 4], "values": base64.b64encode(np.full(4, np.nan, "<f4").tobytes()).decode()},
                "from -1 to 1",
            ),
        ],
    )
    def test_invalid_audio_in_requests_raises(self, change: dict[str, Any], message: str) -> None:
        body, _ = pack_samples([Sample(Prompt("p"), 0, 0, audio=tone())], form="png")
        request = json.loads(body)
        sound = request["samples"][0]["audio"]
        (sound if "sampling_rate" in change else sound["values"]).update(change)
        with pytest.raises(DataError, match=message):
            unpack_request(json.dumps(request).encode(), JSON)
