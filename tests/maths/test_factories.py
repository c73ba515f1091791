"""Decorators of extension points: the declarations and checks of a decorated function, and its arguments."""

from __future__ import annotations

import inspect

import pytest
import torch

from mmgrpo.config.binding import bound
from mmgrpo.config.sections import Named
from mmgrpo.errors import ConfigError
from mmgrpo.maths.estimators import estimator
from mmgrpo.maths.feedback import Estimator, Feedback
from mmgrpo.values import ENTROPY, of_view
from tests.maths.feedback_rows import feedback_of


def require_below(low: float, high: float) -> None:
    if low >= high:
        raise ConfigError(f"low must be below high, got {low} and {high}")


@estimator(
    values=lambda view: (of_view(view), ENTROPY),
    tokens=True,
    keeps=lambda low, high: int(high - low),
    check=require_below,
)
def shifted(
    feedback: Feedback, advantage_BT: torch.Tensor, *, view: str, low: float = 1.0, high: float
) -> torch.Tensor:
    """Moves advantages.

    Units: any.
    """
    return advantage_BT + low - high


def test_numbers_are_bound_and_declarations_computed_from_them() -> None:
    part = shifted(view="teacher", high=4.0)
    assert isinstance(part, Estimator)
    assert (part.values, part.tokens, part.keeps) == ((of_view("teacher"), ENTROPY), True, 3)
    feedback = feedback_of([1.0], [0], mask=[[1, 1]])
    assert part.assign(feedback, torch.tensor([[5.0, 0.0]])).tolist() == [[2.0, -3.0]]


def test_factory_has_the_name_the_docstring_and_the_numbers_of_its_function() -> None:
    assert (shifted.__name__, inspect.getdoc(shifted)) == ("shifted", "Moves advantages.\n\nUnits: any.")
    numbers = inspect.signature(shifted).parameters
    assert {name: number.default for name, number in numbers.items()} == {
        "view": inspect.Parameter.empty,
        "low": 1.0,
        "high": inspect.Parameter.empty,
    }
    assert all(number.kind is number.KEYWORD_ONLY for number in numbers.values())


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"view": "teacher", "high": 0.5}, "low must be below high, got 1.0 and 0.5"),
        ({"view": "teacher"}, "key: shifted needs high"),
        ({"view": "teacher", "high": 2.0, "hihg": 2.0}, "key: shifted takes no 'hihg'; did you mean high?"),
        ({"view": "teacher", "high": "2"}, "key: high of shifted must be float, got '2'"),
    ],
)
def test_wrong_numbers_raise_before_the_function_is_called(numbers: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        bound("key", {"shifted": shifted}, Named(name="shifted", **numbers))()
    assert message in str(error.value)


def test_declaration_of_a_number_that_the_function_lacks_raises() -> None:
    with pytest.raises(TypeError, match="plain: columns reads column, not one of its settings"):

        @estimator(columns=lambda column: (column,))
        def plain(feedback: Feedback, advantage_BT: torch.Tensor, *, weight: float) -> torch.Tensor:
            return weight * advantage_BT
