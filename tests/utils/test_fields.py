"""Errors of fields carry what the command line needs to name its option."""

from onward.data.records import DataFieldError
from onward.utils.fields import FieldError
from onward.utils.files import DataError


def test_an_error_has_its_field_value_and_problem() -> None:
    error = FieldError("lanes", 7, "there are only 4 documents; use at most 4")
    assert (error.field, error.value, error.problem) == ("lanes", 7, "there are only 4 documents; use at most 4")
    assert str(error) == "lanes=7: there are only 4 documents; use at most 4" and isinstance(error, ValueError)


def test_an_argument_that_does_not_fit_the_data_is_both_errors() -> None:
    error = DataFieldError("pattern", "*", "write it as '*.py'")
    assert isinstance(error, FieldError) and isinstance(error, DataError)
    assert (error.field, str(error)) == ("pattern", "pattern='*': write it as '*.py'")
