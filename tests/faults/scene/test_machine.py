"""What is asked of a machine that cannot do something: a skip that says why; in continuous integration, a failure."""

import pytest

from tests.faults.scene import machine
from tests.faults.scene.machine import Ability, need

pytestmark = pytest.mark.faults


@pytest.mark.parametrize(
    ("ci", "can", "outcome"),
    [("true", True, pytest.fail.Exception), ("true", False, pytest.skip.Exception), ("", True, pytest.skip.Exception)],
)
def test_what_continuous_integration_could_do_is_not_skipped_there(
    monkeypatch: pytest.MonkeyPatch, ci: str, can: bool, outcome: type[BaseException]
) -> None:
    monkeypatch.setenv("CI", ci)
    monkeypatch.setitem(machine.ABILITIES, "flying", Ability(lambda: "there are no wings", lambda: can))
    with pytest.raises(outcome, match="flying: there are no wings"):
        need("flying")
