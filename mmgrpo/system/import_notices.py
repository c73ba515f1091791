"""Notices that libraries print when peft and diffusers import them, and that no user of mmgrpo can act on."""

from __future__ import annotations

import logging
from collections.abc import Mapping

NOTICES: Mapping[str, str] = {
    "torch.utils._pytree": "is an Enum subclass and is now natively supported",
    "diffusers.quantizers.torchao.torchao_quantizer": "Unable to import `torchao` Tensor objects",
    "bitsandbytes.backends.cpu.ops": "Failed to load CPU gemm_4bit_forward from kernels-community",
}
"""A part of the notice by its logger: of torch on torchao's enumerations, of diffusers on files that pickle torchao's
tensors, which it does not load without them, and of bitsandbytes without the package kernels, in whose place it has its
own function."""


def hide_import_notices() -> None:
    """Drops these notices, in this process; the other messages of the loggers stay."""
    for name, part in NOTICES.items():
        logging.getLogger(name).addFilter(lambda record, part=part: part not in str(record.msg))
