"""Requests a reward server judges per second, in batches over its clients and one by one, on this machine.

python -m benchmarks.serving [--clients 16] [--requests 20] [--samples 1] [--side 128] [--reward call model pixels]
"""

from __future__ import annotations

import argparse
import multiprocessing
import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from http.client import HTTPConnection
from statistics import median
from typing import Any

import numpy as np
import torch
from mmgrpo.rewards.images.pixels import Brightness
from mmgrpo.rewards.judges.remote_reward import RemoteReward
from PIL import Image
from torch import nn

from mmgrpo.scoring import NamedReward
from mmgrpo.serving.app import ServerLimits, make_app
from mmgrpo.serving.server import serve
from mmgrpo.types import Prompt, Sample

CALL_S = 0.02
WIDTH = 2048
BATCH = 64
LEGEND = f"""\
call: {CALL_S * 1000:g} ms a call, however many samples, like a large model on a GPU; model: a network of 19 M weights,
one CPU thread; pixels: mean brightness, next to nothing, so what is left is the way there and back.
batched: up to {BATCH} samples a call, over all clients; one by one: a call for each request. Samples per second."""


@dataclass(frozen=True, slots=True)
class Load:
    """The requests of the clients.

    Attributes:
        clients: threads; each sends its next request once it has the answer.
        requests: of each client.
        samples: in each request, one group.
        side: of their square RGB images, in pixels.
    """

    clients: int
    requests: int
    samples: int
    side: int


@dataclass(frozen=True, slots=True)
class Rate:
    """Samples per second as the clients measure, and samples per call as the server counts."""

    samples_per_s: float
    samples_per_call: float


def fixed_call(samples: Sequence[Sample]) -> list[float]:
    """A reward whose call takes the same time for any number of samples."""
    time.sleep(CALL_S)
    return [0.0] * len(samples)


class Model:
    """A reward by a network that reads images at 32 x 32."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        torch.set_num_threads(1)
        layers = [nn.Linear(32 * 32 * 3 if i == 0 else WIDTH, WIDTH) for i in range(4)]
        self._net = nn.Sequential(*[part for layer in layers for part in (layer, nn.ReLU())], nn.Linear(WIDTH, 1))

    @torch.inference_mode()
    def __call__(self, samples: Sequence[Sample]) -> list[float]:
        images = [np.asarray(sample.image.resize((32, 32)), np.float32) for sample in samples if sample.image]
        return self._net(torch.from_numpy(np.stack(images)).flatten(1) / 255)[:, 0].tolist()


REWARDS: dict[str, Callable[[], Callable[..., Any]]] = {
    "call": lambda: fixed_call,
    "model": Model,
    "pixels": Brightness,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures and prints."""
    options = _parser().parse_args(arguments)
    load = Load(options.clients, options.requests, options.samples, options.side)
    print(
        f"{load.clients} clients, {load.requests} requests of {load.samples} sample(s) each, RGB images of "
        f"{load.side} x {load.side}, medians of {options.repeat} rounds"
    )
    print(f"{'reward':8}{'form':9}{'one by one':>12}{'batched':>10}{'ratio':>8}{'samples a call':>16}")
    for reward in options.reward:
        for form in options.form:
            alone, together = measured(reward, form, load, options.repeat)
            ratio = together.samples_per_s / alone.samples_per_s
            print(
                f"{reward:8}{form:9}{alone.samples_per_s:12.0f}{together.samples_per_s:10.0f}{ratio:8.2f}"
                f"{together.samples_per_call:16.1f}"
            )
    print(LEGEND)


def measured(reward: str, form: Any, load: Load, repeat: int) -> tuple[Rate, Rate]:
    """One by one and batched, alternating, each on a separate server process."""
    rounds = [(under_load(reward, form, load, 1), under_load(reward, form, load, BATCH)) for _ in range(repeat)]
    alone, together = (
        Rate(median(rate.samples_per_s for rate in result), median(rate.samples_per_call for rate in result))
        for result in zip(*rounds, strict=True)
    )
    return alone, together


def under_load(reward: str, form: Any, load: Load, max_batch: int) -> Rate:
    """The rate of a server with this batch size, in a separate process."""
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(reward, max_batch, port), daemon=True)
    process.start()
    try:
        client = RemoteReward(f"http://127.0.0.1:{port}", form=form, retries=12, backoff=0.02)
        client(_random_mask(load))
        before = _counted(port)
        start = time.perf_counter()
        with ThreadPoolExecutor(load.clients) as threads:
            list(threads.map(partial(_ask, client, load), range(load.clients)))
        seconds = time.perf_counter() - start
        samples, calls = (now - then for now, then in zip(_counted(port), before, strict=True))
    finally:
        process.kill()
        process.join()
    return Rate(samples / seconds, samples / calls)


def _serve(reward: str, max_batch: int, port: int) -> None:
    app = make_app([NamedReward(reward, REWARDS[reward]())], limits=ServerLimits(max_batch=max_batch))
    serve(app, host="127.0.0.1", port=port)


def _ask(client: RemoteReward, load: Load, _: int) -> None:
    samples = _random_mask(load)
    for _ in range(load.requests):
        client(samples)


def _random_mask(load: Load) -> list[Sample]:
    prompt, draw = Prompt("a picture"), np.random.RandomState(0)
    return [
        Sample(prompt, 0, i, image=Image.fromarray(draw.randint(0, 256, (load.side, load.side, 3)).astype(np.uint8)))
        for i in range(load.samples)
    ]


def _counted(port: int) -> tuple[float, float]:
    """The number of samples that the server has scored, and of its calls."""
    with closing(HTTPConnection("127.0.0.1", port)) as connection:
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
    result = {line.partition("{")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}
    return result["mmgrpo_samples_total"], result["mmgrpo_batch_samples_count"]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--requests", type=int, default=20)
    parser.add_argument("--samples", type=int, default=1)
    parser.add_argument("--side", type=int, default=128)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--reward", nargs="+", choices=list(REWARDS), default=list(REWARDS))
    parser.add_argument("--form", nargs="+", choices=["tensors", "png"], default=["tensors"])
    return parser


if __name__ == "__main__":
    main()
