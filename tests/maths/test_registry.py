"""Registries: functions by name."""

from __future__ import annotations

import pytest

from mmgrpo.maths.registry import Registry


def test_a_name_is_registered_once_in_registries_that_include_each_other() -> None:
    inner: Registry[object] = Registry()
    outer: Registry[object] = Registry(inner)
    inner.register("a")(len)
    with pytest.raises(ValueError, match="a is registered twice"):
        outer.register("a")(max)
    assert outer["a"] is len
