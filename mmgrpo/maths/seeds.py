"""Seeds keyed by their purpose, so that a random number does not depend on batches, ranks or the order of calls."""

from __future__ import annotations

import hashlib
import struct


def row_seed(seed: int, group: int, member: int) -> int:
    """The seed of the random numbers of a row of tokens, from that of its rollout.

    Units: integers -> integer in [0, 2**63).
    """
    return derive_seed(seed, group, member)


def derive_seed(*keys: int) -> int:
    """A 63-bit seed that is a fixed function of the integer keys, for example (seed, step, prompt, member, decision).

    The same on every platform and Python version, unlike ``hash``. Different key tuples give independent seeds: a
    prefix is not the same key as its extension.

    Units: integers -> integer in [0, 2**63).   Raises: struct.error for keys outside 64 bits.
    Source: own; BLAKE2b of the packed keys.
    """
    packed = struct.pack(f"<{len(keys)}q", *keys)
    return int.from_bytes(hashlib.blake2b(packed, digest_size=8).digest(), "little") >> 1
