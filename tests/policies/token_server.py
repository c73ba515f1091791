"""A server with vLLM's paths for tokens and weights, on loopback, with a model of transformers.

It samples token by token from the model's own logits, and loads the weights from the files that the trainer writes.
"""

from __future__ import annotations

import copy
import json
import threading
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import torch
from peft import PeftModel
from transformers import PreTrainedModel

from tests.policies import gloo


class TokenServer(ThreadingHTTPServer):
    """A copy of a model.

    Attributes:
        contexts: closed with the server.
        model: the copy.
        adapters: the copy with adapters that were loaded, by name.
        requests: path and body of each request, in order.
        ignores_weights: answers a reload without loading.
        adds_noise: adds random numbers to weights that it loads.
        status: of every answer; 200, or an error.
        scale_out: has the path for tokens.
        max_tokens: most tokens of a completion; None: as requested.
        is_asleep: whether it generates nothing.
        transfer: the backend of its weight transfer.
    """

    daemon_threads = True

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(("127.0.0.1", 0), TokenHandler)
        self.contexts = ExitStack()
        self.model = copy.deepcopy(model).eval()
        self.version = "default"
        self.adapters: dict[str, PreTrainedModel] = {}
        self.requests: list[tuple[str, Any]] = []
        self.ignores_weights = False
        self.adds_noise = False
        self.status = 200
        self.scale_out = True
        self.max_tokens: int | None = None
        self.is_asleep = False
        self.transfer: str | None = None
        self.lock = threading.Lock()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def end(self) -> None:
        self.contexts.close()
        self.shutdown()
        self.server_close()

    def bodies(self, path: str) -> list[Any]:
        """The requests of a path."""
        return [body for requested, body in self.requests if requested == path]

    @property
    def samplings(self) -> list[Any]:
        """The requests for completions of prompts; others ask for the vocabulary, and for the effect of weights."""
        return [body for body in self.bodies("/inference/v1/generate") if body["token_ids"] != [0]]

    def reply(self, path: str, body: Any) -> tuple[int, Any]:
        if self.status != 200:
            return self.status, {"error": "out of order"}
        if path == "/v1/models":
            return 200, {"data": [{"id": name, "max_model_len": 64} for name in ("tiny", *self.adapters)]}
        if path == "/weight_info":
            return 200, {"weight_version": self.version}
        if path == "/is_sleeping":
            return 200, {"is_sleeping": self.is_asleep}
        if path in ("/sleep", "/wake_up"):
            self.is_asleep = path == "/sleep"
        if path in ("/collective_rpc", "/inference/v1/generate") and self.is_asleep:
            return 500, {"error": "asleep"}
        if path == "/collective_rpc":
            assert body["method"] == "reload_weights"
            if not self.ignores_weights:
                folder = body["kwargs"]["weights_path"]
                self.model = type(self.model).from_pretrained(folder, dtype=torch.float32).eval()
            if self.adds_noise:
                for parameter in self.model.parameters():
                    parameter.data += 0.05 * torch.randn_like(parameter)
            return 200, {"results": [None]}
        if path == "/get_world_size":
            return 200, {"world_size": 1}
        if path == "/init_weight_transfer_engine" and self.transfer != "nccl":
            return 500, {"error": "weight_transfer_config is not set"}
        if path == "/init_weight_transfer_engine":
            self.group = gloo.joined(SimpleNamespace(**body["init_info"]))
        if path == "/update_weights":
            self.receive(**body["update_info"])
        if path == "/v1/load_lora_adapter":
            adapted = PeftModel.from_pretrained(copy.deepcopy(self.model), body["lora_path"])
            self.adapters[body["lora_name"]] = adapted.merge_and_unload().eval()
            return 200, "Success"
        if path == "/v1/unload_lora_adapter":
            del self.adapters[body["lora_name"]]
        if path == "/update_weight_version":
            self.version = body["new_version"]
        if path != "/inference/v1/generate":
            return 200, {}
        if not self.scale_out:
            return 404, {"error": "Not Found"}
        name, params = body.get("model", "tiny"), body["sampling_params"]
        if name not in ("tiny", *self.adapters):
            return 404, {"error": f"The model `{name}` does not exist."}
        vocabulary = self.model.config.get_text_config().vocab_size
        if any(int(token) >= vocabulary for token in params.get("logit_bias", ())):
            return 400, {"error": "out-of-vocab token id"}
        model = self.adapters.get(name, self.model)
        return 200, {"choices": [self.choice(model, body["token_ids"], params, n) for n in range(params.get("n", 1))]}

    def receive(self, names: list[str], dtype_names: list[str], shapes: list[list[int]]) -> None:
        """Loads broadcast tensors."""
        weights = {}
        for name, dtype, shape in zip(names, dtype_names, shapes, strict=True):
            weights[name] = torch.empty(shape, dtype=getattr(torch, dtype))
            self.group.broadcast(weights[name])
        missing, unexpected = self.model.load_state_dict(weights, strict=False)
        assert not unexpected
        assert set(missing) <= {"lm_head.weight"}, missing

    @torch.no_grad()
    def choice(
        self, model: PreTrainedModel, token_ids: list[int], params: dict[str, Any], index: int
    ) -> dict[str, Any]:
        """A completion, sampled with the seed of its number."""
        generator = torch.Generator().manual_seed(params.get("seed", 0) + index)
        tokens, logprobs = list(token_ids), list[float]()
        while len(logprobs) < (self.max_tokens or params["max_tokens"]):
            logits_V = model(torch.tensor([tokens])).logits[0, -1].float()
            for token, bias in params.get("logit_bias", {}).items():
                logits_V[int(token)] += bias
            temperature = params.get("temperature", 1.0)
            logits_V = logits_V / (temperature or 1.0)
            if params.get("top_k"):
                logits_V = logits_V.masked_fill(logits_V < logits_V.topk(params["top_k"]).values[-1], -torch.inf)
            logprob_V = logits_V.log_softmax(-1)
            sampled = int(logprob_V.exp().multinomial(1, generator=generator))
            token = sampled if temperature else int(logprob_V.argmax())
            tokens.append(token)
            logprobs.append(float(logprob_V[token]))
            if token in params.get("stop_token_ids", ()):
                break
        finished = tokens[-1] in params.get("stop_token_ids", ())
        return {
            "index": index,
            "token_ids": tokens[len(token_ids) :],
            "logprobs": {"content": [{"logprob": logprob} for logprob in logprobs]},
            "finish_reason": "stop" if finished else "length",
            "weight_versions": [{"start": 0, "version": self.version}],
        }


class TokenHandler(BaseHTTPRequestHandler):
    server: TokenServer

    def do_GET(self) -> None:
        self.answer(None)

    def do_POST(self) -> None:
        self.answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def answer(self, body: Any) -> None:
        path = urlsplit(self.path).path
        with self.server.lock:
            self.server.requests.append((path, body))
            status, reply = self.server.reply(path, body)
        content = json.dumps(reply).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Write nothing."""
