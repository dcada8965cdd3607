"""For all tests: nothing of this user's own settings or state is read or changed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="session")
def own_state_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Lasting state of simulated machines goes to a folder of this test process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield
