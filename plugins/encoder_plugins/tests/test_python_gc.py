"""The garbage collector is paused while a library is imported, and runs again afterwards, whatever the import does."""

import gc

import pytest

from encoder_plugins import python_gc


def fails() -> None:
    with python_gc.paused():
        assert not gc.isenabled()
        raise ImportError


def test_it_runs_again_after_an_import_that_fails() -> None:
    before = gc.get_freeze_count()
    with pytest.raises(ImportError):
        fails()
    assert gc.isenabled()
    # what existed is excluded from later collections
    assert gc.get_freeze_count() > before


def test_the_threshold_is_raised() -> None:
    before = gc.get_threshold()
    gc.set_threshold(700)
    try:
        python_gc.raise_threshold()
        assert gc.get_threshold()[0] == python_gc.THRESHOLD
    finally:
        gc.set_threshold(*before)
