"""TRL's arguments of vLLM as ``rollout.engine``, and its importance weights as parts of ``advantage``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from mmgrpo.config.sections import at
from mmgrpo.config.validating import set_value
from mmgrpo.errors import ConfigError
from mmgrpo.system.json_requests import require_server
from mmgrpo.system.site_pages import page_url
from mmgrpo.trl.arguments import GRPOConfig

PYTHON = "vllm-env/bin/python"
"""The Python of an environment with vLLM, as the page about engines has it."""

PAGE = page_url("how-to/engines")
MODES = ("token_truncate", "sequence_truncate", "token_mask", "sequence_mask")


def vllm_values(args: GRPOConfig) -> dict[str, Any]:
    """The values of ``rollout.engine``, and those of ``advantage`` that weigh its samples.

    Args:
        args: the arguments.

    Returns:
        The values by dotted key; none without vLLM.

    Raises:
        ConfigError: mmgrpo does not have a value, or the arguments do not name a server.
    """
    if not args.use_vllm:
        return {}
    if args.vllm_mode not in ("server", "colocate"):
        raise ConfigError(f"vllm_mode={args.vllm_mode!r} must be 'server' or 'colocate'")
    engine = _running_server(args) if args.vllm_mode == "server" else _started_server(args)
    return {"rollout.engine": engine, **_weights(args)}


def vllm_differences(args: GRPOConfig) -> dict[str, bool]:
    """Where a run with vLLM differs from that of TRL.

    Args:
        args: the arguments.

    Returns:
        A sentence for each difference, and whether it applies.
    """
    is_server = args.use_vllm and args.vllm_mode == "server"
    is_colocate = args.use_vllm and args.vllm_mode == "colocate"
    started = f"started by the command of {PAGE}"
    return {
        f"vllm_mode='server': the server must be vLLM's, {started}; one with other paths, as that of earlier versions "
        "of trl vllm-serve, is an error before the first sample": is_server,
        "vllm_mode='server': the server reads weights from files, TRL sends them by NCCL, as with "
        "rollout.engine.transfer: nccl": is_server,
        f"vllm_server_timeout={args.vllm_server_timeout:g}: the time limit of a request for the completions of a "
        "prompt; TRL waits as long for the server to start, which must run before the trainer here": (
            is_server and args.vllm_server_timeout != GRPOConfig.vllm_server_timeout
        ),
        f"vllm_mode='colocate': the run starts one vLLM server in a separate process ({PAGE}), TRL has vLLM in each "
        "process of the trainer": is_colocate,
        "off_policy_mask_threshold: the old log-probabilities are the trainer's, TRL's are vLLM's": (
            args.use_vllm and args.off_policy_mask_threshold is not None
        ),
    }


def _running_server(args: GRPOConfig) -> dict[str, Any]:
    host = "127.0.0.1" if args.vllm_server_host == "0.0.0.0" else args.vllm_server_host
    url = args.vllm_server_base_url or f"http://{host}:{args.vllm_server_port}"
    require_server(url, "vllm_server_base_url" if args.vllm_server_base_url else "vllm_server_host")
    is_set = args.vllm_server_timeout != GRPOConfig.vllm_server_timeout
    return {"name": "vllm", "url": url, **({"timeout_s": float(args.vllm_server_timeout)} if is_set else {})}


def _started_server(args: GRPOConfig) -> dict[str, Any]:
    """The server in place of vLLM in the training process. Raises ConfigError without the Python that starts it."""
    options = ["--gpu-memory-utilization", str(args.vllm_gpu_memory_utilization)]
    if args.vllm_max_model_length is not None:
        options += ["--max-model-len", str(args.vllm_max_model_length)]
    if args.vllm_tensor_parallel_size > 1:
        options += ["--tensor-parallel-size", str(args.vllm_tensor_parallel_size)]
    if args.vllm_model_impl != "vllm":
        options += ["--model-impl", args.vllm_model_impl]
    engine = {"name": "vllm", "options": options, **({"sleep": True} if args.vllm_enable_sleep_mode else {})}
    nested: dict[str, Any] = {}
    for key, value in {"rollout.engine": engine, **args.overrides}.items():
        set_value(nested, key.split("."), value)
    result = at(nested, "rollout.engine", None)
    if isinstance(result, Mapping) and result.get("options") == options and "python" not in result:
        raise ConfigError(
            "vllm_mode='colocate': mmgrpo starts a vLLM server for the run in place of vLLM in the training process, "
            "and needs the Python of an environment with vLLM: "
            f"overrides={{'rollout.engine.python': {PYTHON!r}}}; or set vllm_mode='server' and vllm_server_base_url "
            f"({PAGE})"
        )
    return engine


def _weights(args: GRPOConfig) -> dict[str, Any]:
    """The estimator and the filter of ``methods/tis``, ``sequence-tis``, ``mis`` or ``sequence-mis`` with TRL's bounds.

    w = exp(log pi_old - log mu), of the token or of the sequence: min(w, clip_max), or w from clip_min to clip_max,
    else 0.
    """
    if not args.vllm_importance_sampling_correction:
        return {}
    mode = args.vllm_importance_sampling_mode
    if mode not in MODES:
        raise ConfigError(f"vllm_importance_sampling_mode={mode!r} must be {', '.join(map(repr, MODES))}")
    if args.loss_type == "vespo":
        raise ConfigError(
            "loss_type='vespo' has no importance weights between vLLM and the trainer: set "
            "vllm_importance_sampling_correction=False"
        )
    low, cap = args.vllm_importance_sampling_clip_min, args.vllm_importance_sampling_clip_max
    level, is_mask = {"level": "sequence"} if mode.startswith("sequence") else {}, mode.endswith("mask")
    _require_bounds(low, cap, mode=mode, is_mask=is_mask)
    high = math.inf if cap is None else float(cap)
    values: dict[str, Any] = {
        "advantage.estimators": [{"name": "sampler_weight_truncated", "cap": high, **level}],
    }
    if is_mask and (low is not None or cap is not None):
        bounds = {"high": high} if low is None else {"low": float(low), "high": high}
        values["advantage.filters"] = [{"name": "sampler_weight_within", **bounds, **level}]
        values["advantage.filtered_samples"] = "mask"
    return values


def _require_bounds(low: float | None, cap: float | None, *, mode: str, is_mask: bool) -> None:
    """Raises ConfigError for bounds that the weights do not have."""
    if not is_mask and low is not None:
        raise ConfigError(
            f"vllm_importance_sampling_clip_min={low} is not supported with vllm_importance_sampling_mode={mode!r}: "
            "truncated weights have no lower bound; leave it out, or set token_mask or sequence_mask"
        )
    if not is_mask and not (cap is not None and cap >= 1):
        raise ConfigError(
            f"vllm_importance_sampling_clip_max={cap} must be at least 1 with vllm_importance_sampling_mode={mode!r}"
        )
    if is_mask and not (0 <= (low or 0) < 1 < (math.inf if cap is None else cap)):
        raise ConfigError(
            f"vllm_importance_sampling_clip_max={cap} must be above 1, and vllm_importance_sampling_clip_min={low} "
            "from 0 to below 1: the weight of equal log-probabilities is 1"
        )
