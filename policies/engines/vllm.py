"""vLLM as an inference engine, over HTTP; this process does not import it.

Tokens go to ``/inference/v1/generate``. Weights are safetensors files that the server reads (``reload_weights`` by
``/collective_rpc``), between ``/pause`` and ``/resume``, which also empty its prefix cache.
"""

from __future__ import annotations

import json
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any, final

from mmgrpo.data.image_loading import data_url
from mmgrpo.errors import ConfigError, EngineError
from mmgrpo.policy import EngineContext
from mmgrpo.system.json_requests import NoReplyError, RequestLimits, get_json, post_json, require_server

from .engine import (
    Engine,
    EngineAdapters,
    EngineCompletion,
    EngineModel,
    EngineRequest,
    EngineSampling,
    WeightVersions,
)
from .vllm_server import MODULE, OPTIONS, ServerCommand, VllmServer

MAX_REPLY_BYTES = 2**30
ALIVE_S = 30.0
"""Seconds that an idle server may take for a question about its state."""

NEVER = -100.0
"""The least ``logit_bias`` of vLLM: the probability of a suppressed token is divided by e^100."""

VERSION_POLL_S = 0.2
"""Seconds between two questions of a process that waits for weights that another one sends."""

LOADING = "loading"
"""Version of weights that may be incomplete."""

TEXT_REPLIES = ("/v1/load_lora_adapter", "/v1/unload_lora_adapter")
"""Paths whose reply is a sentence."""

CPU_HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Sizes of attention heads that vLLM has on the CPU."""

START = f"VLLM_SERVER_DEV_MODE=1 python -m {MODULE} --model MODEL {' '.join(OPTIONS)}"


@final
class VllmEngine(Engine):
    """A vLLM server with a copy of the trained model, on this machine or with a shared folder.

    It is at a URL, or is started for the run; ``START`` is the command that starts it. The development mode has the
    paths that replace weights, so only trusted processes may reach the server.

    Source: vLLM 0.32, ``entrypoints/rl/online`` and ``entrypoints/scale_out/token_in_token_out``.
    """

    def __init__(
        self,
        *,
        url: str | None = None,
        python: str | None = None,
        options: Sequence[str] = (),
        variables: Mapping[str, str] | None = None,
        start_timeout_s: float = 600.0,
        weights_folder: str | None = None,
        concurrency: int = 64,
        timeout_s: float = 600.0,
        retries: int = 2,
        key_variable: str | None = None,
        max_mismatch: float | None = None,
        load_adapters: bool = False,
    ) -> None:
        """Checks the settings; connects to nothing.

        Args:
            url: address of the server, such as http://127.0.0.1:8000.
            python: Python of an environment with vLLM, which starts the server for the run, in place of ``url``.
            options: further options of that server.
            variables: further environment variables of that server.
            start_timeout_s: seconds that it may take to start.
            weights_folder: folder for weights that trainer and server see under the same path; None: a temporary one.
            concurrency: maximum number of requests at a time.
            timeout_s: seconds that the completions of a prompt, or the loading of weights, may take.
            retries: number of retries of a request that failed for a passing reason.
            key_variable: environment variable with the server's API key; None: no key.
            max_mismatch: maximum mean difference between log-probabilities of server and trainer, in nats; None: 0.001
                for a float32 model, 0.1 for a bfloat16 model.
            load_adapters: sends LoRA adapters alone, which the server adds to its weights; otherwise the weights with
                the adapters merged.

        Raises:
            ConfigError: a setting has an invalid value.
        """
        self._command = _server_command(url, python, options, variables or {}, start_timeout_s)
        if concurrency < 1 or retries < 0 or not timeout_s > 0 or not (max_mismatch is None or max_mismatch > 0):
            raise ConfigError(
                "rollout.engine needs concurrency of at least 1, retries of at least 0, and timeout_s and max_mismatch "
                f"above 0, got {concurrency}, {retries}, {timeout_s} and {max_mismatch}"
            )
        if weights_folder is not None and not Path(weights_folder).is_dir():
            raise ConfigError(f"rollout.engine.weights_folder: there is no folder {weights_folder}")
        self._url, self._key_variable = (url or "").rstrip("/"), key_variable
        self._server: VllmServer | None = None
        self._limits = RequestLimits(timeout_s=timeout_s, retries=retries, max_bytes=MAX_REPLY_BYTES)
        self._state_limits = RequestLimits(timeout_s=timeout_s, retries=0)  # it may compute for another process
        self._short_limits = RequestLimits(timeout_s=min(ALIVE_S, timeout_s), retries=0)
        self._max_mismatch = max_mismatch
        self._weights_folder = weights_folder
        self._load_adapters = load_adapters
        self._model: EngineModel | None = None
        self._version: str | None = None
        self._adapter: str | None = None
        self._queue: SimpleQueue[tuple[EngineRequest, Future[Sequence[EngineCompletion]]]] = SimpleQueue()
        self._concurrency, self._num_threads = concurrency, 0

    @property
    def address(self) -> str:
        """The URL; before that of a server that is started for the run, the program."""
        return f"started by {self._command.python}" if self._command and not self._url else self._url

    @property
    def max_mismatch(self) -> float | None:
        """The setting."""
        return self._max_mismatch

    @contextmanager
    def serving(self, model: EngineModel, context: EngineContext) -> Iterator[None]:
        """Starts the server, if it is started for the run, on the main process, and checks its model."""
        adapters = self._adapters(model)

        def connect() -> str:
            if self._command is not None:
                self._server = VllmServer(self._command, model, context.log, lora_rank=adapters and adapters.rank)
                self._url = self._server.url
            self._require_model(model)
            return self._url

        try:
            self._url, self._model = context.run_on_main(connect), model
            yield
        finally:
            if self._server is not None:
                self._server.end()
                self._server, self._url = None, ""

    def _require_model(self, model: EngineModel) -> None:
        """Asks for the last token of the vocabulary, which the server must have, and for the next one."""
        try:
            models = self._get("/v1/models")["data"]
            version = self._get("/weight_info")
        except EngineError as error:
            raise ConfigError(f"{error}. Start it with: {START}") from error
        if "weight_version" not in version or not models:
            raise ConfigError(
                f"rollout.engine.url: {self._url} is no vLLM server in development mode. Start it with: {START}"
            )
        if (reason := self._rejects(model.num_tokens - 1, model)) or not self._rejects(model.num_tokens, model):
            raise ConfigError(
                f"rollout.engine.url: {self._url} serves {models[0]['id']}, whose vocabulary does not have the "
                f"{model.num_tokens} tokens of the trained model: serve the model of policy.model "
                f"({reason or 'it has more'})"
            )

    def require_alive(self) -> None:
        """Asks the process that takes requests; the one that computes answers between two tokens only."""
        try:
            self._get("/health")
        except EngineError as error:
            raise EngineError(f"{error}. Resume the run, with a server that answers") from error

    def load_weights(self, versions: WeightVersions, *, sends: bool) -> None:
        """Sends the weights with merged adapters, or the frozen weights, once, and the adapters by name."""
        model = self._model
        assert model is not None
        adapters = self._adapters(model)
        if adapters is None:
            self._version = f"mmgrpo-{versions.frozen}-{versions.trained}"
            self._ensure(self._has_version, lambda: self._reload(model.save), sends=sends)
            return
        self._version, self._adapter = f"mmgrpo-{versions.frozen}", f"mmgrpo-{versions.trained}"
        self._ensure(self._has_version, lambda: self._reload(adapters.save_base), sends=sends)
        self._ensure(self._has_adapter, lambda: self._load_adapter(adapters), sends=sends)

    def _adapters(self, model: EngineModel) -> EngineAdapters | None:
        """The adapters that are sent alone. Raises ConfigError if there are none to send."""
        if self._load_adapters and model.adapters is None:
            raise ConfigError("rollout.engine.load_adapters needs policy.lora: remove it")
        return model.adapters if self._load_adapters else None

    def _has_version(self) -> bool:
        return self._get("/weight_info", self._state_limits)["weight_version"] == self._version

    def _has_adapter(self) -> bool:
        return self._adapter in self._adapter_names()

    def _adapter_names(self) -> list[str]:
        """The adapters that runs have sent."""
        return [
            model["id"]
            for model in self._get("/v1/models", self._state_limits)["data"]
            if model["id"].startswith("mmgrpo-")
        ]

    def _ensure(self, is_done: Callable[[], bool], act: Callable[[], None], *, sends: bool) -> None:
        """Acts unless it is done already, or waits until another process has acted."""
        deadline = time.monotonic() + self._limits.timeout_s
        while not is_done():
            if sends:
                return act()
            if time.monotonic() > deadline:
                raise EngineError(
                    f"rollout.engine: {self._url} has no weights {self._adapter or self._version} after timeout_s="
                    f"{self._limits.timeout_s:g} seconds: the main process sends other ones. Resume the run"
                )
            time.sleep(VERSION_POLL_S)

    def _reload(self, save: Callable[[Path], None]) -> None:
        """Pauses the server, reloads the files of a folder, sets the version, and resumes.

        If it fails in between, or this process ends, the server has no version that a run accepts, and another call
        loads them all.
        """
        with tempfile.TemporaryDirectory(prefix="mmgrpo-weights-", dir=self._weights_folder) as folder:
            save(Path(folder))
            self._post("/pause?mode=abort", {})
            self._post("/update_weight_version", {"new_version": LOADING})  # until they are complete
            self._post(
                "/collective_rpc",
                {"method": "reload_weights", "kwargs": {"weights_path": folder}, "timeout": self._limits.timeout_s},
            )
        self._post("/reset_prefix_cache", {})
        self._post("/update_weight_version", {"new_version": self._version})
        self._post("/resume", {})

    def _load_adapter(self, adapters: EngineAdapters) -> None:
        """Loads the adapters under a new name, which has its own entries in the prefix cache, and unloads others."""
        for name in self._adapter_names():
            self._post("/v1/unload_lora_adapter", {"lora_name": name})
        with tempfile.TemporaryDirectory(prefix="mmgrpo-adapters-", dir=self._weights_folder) as folder:
            adapters.save(Path(folder))
            self._post("/v1/load_lora_adapter", {"lora_name": self._adapter, "lora_path": folder})

    def submit(self, request: EngineRequest) -> Future[Sequence[EngineCompletion]]:
        """Queues the request; daemon threads send the queued ones, ``concurrency`` at a time."""
        future: Future[Sequence[EngineCompletion]] = Future()
        self._queue.put((request, future))
        if self._num_threads < self._concurrency:
            self._num_threads += 1
            threading.Thread(target=self._serve, name=f"vllm {self._num_threads}", daemon=True).start()
        return future

    def _serve(self) -> None:
        while True:
            request, future = self._queue.get()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(self._completions(request))
            except Exception as error:  # raised where the result is read
                future.set_exception(error)

    def _completions(self, request: EngineRequest) -> list[EngineCompletion]:
        body = {
            **_prompt(request),
            **({} if self._adapter is None else {"model": self._adapter}),
            "sampling_params": {
                "n": request.num,
                "seed": request.seed,
                "max_tokens": request.max_tokens,
                "logprobs": 0,
                "detokenize": False,
                **_sampling_params(request.sampling),
            },
        }
        reply = self._post("/inference/v1/generate", body)
        try:
            if request.images:
                self._require_same_prompt(reply.get("prompt_token_ids") or (), request)
            choices = sorted(reply["choices"], key=lambda choice: choice["index"])
            return [self._completion(choice, request) for choice in choices]
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise EngineError(
                f"rollout.engine: {self._url} sent an unknown reply ({type(error).__name__}: {error}): use vLLM 0.32"
            ) from error

    def _require_same_prompt(self, token_ids: Sequence[int], request: EngineRequest) -> None:
        """Raises EngineError if the server inserts other parts of images than the trainer."""
        if tuple(token_ids) != request.token_ids:
            raise EngineError(
                f"rollout.engine: {self._url} reads a prompt with images as {len(token_ids)} tokens, the trainer as "
                f"{len(request.token_ids)} or as other ones: start it with the settings of policy.processor as "
                "--mm-processor-kwargs, and leave out media options"
            )

    def _completion(self, choice: Mapping[str, Any], request: EngineRequest) -> EngineCompletion:
        token_ids = tuple(choice["token_ids"] or ())
        logprobs = tuple(float(entry["logprob"]) for entry in (choice["logprobs"] or {}).get("content") or ())
        versions = {str(span["version"]) for span in choice["weight_versions"] or ()}
        if versions != {self._version}:
            raise EngineError(
                f"rollout.engine: {self._url} sampled with weights {', '.join(sorted(versions)) or 'of no version'} "
                f"instead of {self._version}: it was restarted, or another run uses it. Give each run its own server "
                "and resume"
            )
        if not token_ids or len(token_ids) != len(logprobs) or choice["finish_reason"] not in ("stop", "length"):
            raise EngineError(
                f"rollout.engine: {self._url} returned {len(token_ids)} tokens and {len(logprobs)} log-probabilities "
                f"({choice['finish_reason']}): resume the run"
            )
        finished = token_ids[-1] in request.sampling.end_ids
        if not finished and len(token_ids) < request.max_tokens:
            raise EngineError(
                f"rollout.engine: {self._url} cut a completion off after {len(token_ids)} of {request.max_tokens} "
                f"tokens, since the prompt has {len(request.token_ids)}: start it with a larger --max-model-len, and "
                "resume the run"
            )
        return EngineCompletion(token_ids=token_ids, logprobs=logprobs, finished=finished)

    def _rejects(self, token: int, model: EngineModel) -> str | None:
        """The server's reason for rejecting a token, which has no logit; None if it has one."""
        params = {"max_tokens": 1, "logit_bias": {str(token): 0.0}, "detokenize": False}
        try:
            self._post("/inference/v1/generate", {"token_ids": [0], "sampling_params": params})
        except EngineError as error:
            status = error.__cause__.status if isinstance(error.__cause__, NoReplyError) else None
            if status == 400:
                return str(error.__cause__)
            if status == 404:
                raise ConfigError(f"{error}. Start it with: {START}") from error
            sizes = (
                ""
                if model.head_size in CPU_HEAD_SIZES
                else (
                    f". The model has attention heads of size {model.head_size}; on the CPU, vLLM has "
                    f"{', '.join(map(str, CPU_HEAD_SIZES))}"
                )
            )
            raise ConfigError(f"{error}. It cannot compute a token of this model{sizes}") from error
        return None

    def _get(self, path: str, limits: RequestLimits | None = None) -> Any:
        try:
            reply = get_json(self._url + path, limits or self._short_limits, key_variable=self._key_variable)
            return json.loads(reply or b"null")
        except (NoReplyError, ValueError) as error:
            raise EngineError(
                f"rollout.engine: the server {self._url} does not answer {path} ({error}){self._state()}"
            ) from error

    def _post(self, path: str, body: Mapping[str, Any]) -> Any:
        try:
            reply = post_json(self._url + path, body, self._limits, key_variable=self._key_variable)
            return None if path in TEXT_REPLIES else json.loads(reply or b"null")
        except (NoReplyError, ValueError) as error:
            fix = "See its log, start it again, and resume the run" if self._command is None else "Resume the run"
            raise EngineError(
                f"rollout.engine: the server {self._url} did not do {path.partition('?')[0]} ({error})"
                f"{self._state()}. {fix}"
            ) from error

    def _state(self) -> str:
        """The state of a server that is started for the run, for messages."""
        return "" if self._server is None else f": {self._server.state}"


def _server_command(
    url: str | None, python: str | None, options: Sequence[str], variables: Mapping[str, str], timeout_s: float
) -> ServerCommand | None:
    """The command that starts the server; None with a URL. Raises ConfigError for settings that do not go together."""
    if (url is None) == (python is None):
        raise ConfigError(
            "rollout.engine needs either url, the address of a running server, or python, the Python of an environment "
            "with vLLM, which starts one for the run"
        )
    if python is not None:
        return ServerCommand(python=python, options=options, variables=variables, timeout_s=timeout_s)
    assert url is not None
    require_server(url, "rollout.engine.url")
    if options or variables:
        raise ConfigError("rollout.engine.options and variables are those of a server that python starts: remove them")
    return None


def _prompt(request: EngineRequest) -> dict[str, Any]:
    """The tokens; with images those before the server inserts their parts, and the images themselves."""
    if not request.images:
        return {"token_ids": list(request.token_ids)}
    parts = [{"type": "image_url", "url": data_url(image, "png")} for image in request.images]
    tokens = [
        token
        for token, previous in zip(request.token_ids, (None, *request.token_ids), strict=False)
        if token != previous or token not in request.image_tokens
    ]
    return {"token_ids": tokens, "content_parts": parts, "return_token_ids": True}


def _sampling_params(sampling: EngineSampling) -> dict[str, Any]:
    """The distribution in vLLM's names."""
    params: dict[str, Any] = {
        "temperature": sampling.temperature,
        "stop_token_ids": list(sampling.end_ids),
        "ignore_eos": True,
        "top_k": sampling.top_k or 0,
        "top_p": 1.0 if sampling.top_p is None else sampling.top_p,
        "min_p": 0.0 if sampling.min_p is None else sampling.min_p,
    }
    if sampling.suppressed:
        params["logit_bias"] = {str(token): NEVER for token in sampling.suppressed}
    return params
