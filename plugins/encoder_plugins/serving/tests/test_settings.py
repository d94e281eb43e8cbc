"""Settings on their way through the environment."""

import pytest

from encoder_plugins.serving import settings
from encoder_plugins.serving.settings import CountersFile, Settings


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", '{"plugin": "p"}', '{"plugin": "p", "limits": {"a": "1"}}'),
        '{"plugin": "p", "limits": {}, "more": 1}',
        '{"plugin": "p", "limits": {}, "counters": {"path": "f", "processes": 2, "more": 1}}',
    ],
)
def test_settings_of_another_version_are_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        settings.read({settings.VARIABLE: text})


def test_settings_are_read_as_they_were_written_and_do_not_change() -> None:
    written = Settings(plugin="p", limits={"a": 1}, counters=CountersFile(path="f", processes=2))
    assert settings.read({settings.VARIABLE: written.encode()}) == written
    assert settings.read({}) is None
    assert written.counters
    for value, name in ((written, "plugin"), (written.counters, "path")):
        with pytest.raises(AttributeError, match="immutable"):
            setattr(value, name, "other")
