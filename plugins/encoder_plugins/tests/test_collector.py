"""The garbage collector rests while a library is imported, and works again afterwards, whatever the import does."""

import gc

import pytest

from encoder_plugins import collector


def fails() -> None:
    with collector.stopped():
        assert not gc.isenabled()
        raise ImportError


def test_it_works_again_after_an_import_that_fails() -> None:
    before = gc.get_freeze_count()
    with pytest.raises(ImportError):
        fails()
    assert gc.isenabled()
    # what there was is not looked through again
    assert gc.get_freeze_count() > before
    gc.unfreeze()


def test_it_runs_less_often_and_still_runs() -> None:
    before = gc.get_threshold()
    collector.run_seldom()
    assert before[0] <= collector.OBJECTS == gc.get_threshold()[0]
    gc.set_threshold(*before)
