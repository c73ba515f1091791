"""The docstrings of registered functions."""

from __future__ import annotations

import inspect

import pytest

from mmgrpo.maths.estimators import ESTIMATORS
from mmgrpo.maths.filters import FILTERS
from mmgrpo.maths.modulations import MODULATIONS
from mmgrpo.maths.terms import TERMS


@pytest.mark.parametrize("registry", [ESTIMATORS, FILTERS, MODULATIONS, TERMS], ids=len)
def test_docstrings_have_the_source_and_the_units(registry):
    for name, make in registry.items():
        docstring = inspect.getdoc(make) or ""
        assert "Units:" in docstring, name
        assert "Source:" in docstring or name == "constant", name
        parameters = inspect.signature(make).parameters.values()
        assert all(parameter.kind is parameter.KEYWORD_ONLY for parameter in parameters), name
