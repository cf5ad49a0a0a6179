"""The configuration of sweeps: what is taken, and what is said, with its line, of each mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankscope.diagnose.sweep.config import CONFIG_CAP, Config, ConfigError, parse_config, read_config
from rankscope.diagnose.sweep.registry import Check

CHECK = Check("disk.full", "", "", {"free_gb": 20.0, "known": ("a",), "strict": False}, lambda _: iter(()))


@pytest.mark.parametrize("state", ["unknown", "warning", "critical"])
def test_a_sweep_may_fail_on_any_state_that_is_not_ok(state: str) -> None:
    assert parse_config(f'[sweep]\nfail_on = "{state}"\n', [CHECK]).fail_on == state


def test_what_is_set_is_taken_and_the_rest_is_as_usual() -> None:
    text = (
        '[sweep]\nconfirm_s = 60\nskip = ["disk.full"]\n'
        '[check."disk.full"]\nfree_gb = 5\nknown = ["b", "c"]\nstrict = true\nignore = ["/mnt/*"]\n'
    )
    found = parse_config(text, [CHECK])
    assert (found.confirm_s, found.skip, found.timeout_s) == (60.0, ("disk.full",), Config().timeout_s)
    assert found.settings(CHECK) == {"free_gb": 5.0, "known": ("b", "c"), "strict": True, "ignore": ("/mnt/*",)}
    assert found.ignored("disk.full") == ("/mnt/*",) and found.ignored("gpu.xid") == ()


MISTAKES = {
    "sweep = 3\n": "[sweep] must be a table",
    "check = 3\n": '[check."ID"] must be a table',
    "other = 3\n": 'line 1: unknown table [other]; there are [sweep] and [check."ID"]',
    '[check]\n"disk.full" = 3\n': "line 2: disk.full must be a table",
    "[check.disk.full]\nfree_gb = 1\n": "unknown check 'disk' (quote the id: [check.\"disk.full\"])",
    '[check]\nodd = 3\n': "line 2: unknown check 'odd'",
    '[check."disk.full"]\n\nodd = 3\n': "line 3: disk.full has no setting odd; it has free_gb, known, strict, ignore",
    '[check."disk.full"]\nfree_gb = true\n': "line 2: free_gb must be a number",
    '[check."disk.full"]\nfree_gb = -1\n': "line 2: free_gb must be a number from 0 on",
    '[check."disk.full"]\nfree_gb = 1e16\n': "line 2: free_gb must be a number from 0 on",
    '[check."disk.full"]\nstrict = 1\n': "line 2: strict must be true or false",
    '[check."disk.full"]\nknown = "a"\n': "line 2: known must be a list of strings",
    '[check."disk.full"]\nknown = [1]\n': "line 2: known must be a list of strings",
    "[sweep]\nhook = 3\n": "line 2: hook must be a string",
    "[sweep]\nodd = 3\n": "line 2: unknown setting odd; there are fail_on,",
    '[sweep]\nfail_on = "ok"\n': "line 2: fail_on must be one of unknown, warning, critical",
    '[sweep]\nskip = ["odd"]\n': "line 2: unknown check 'odd'",
    "[sweep]\ntimeout_s = 61\n": "line 2: timeout_s must lie between 0.1 and 60",
    "[sweep]\ntimeout_s = 0.01\n": "line 2: timeout_s must lie between 0.1 and 60",
    "[sweep]\nconfirm_s = 60.5\n": "line 2: confirm_s must lie between 0 and 60",
    "[sweep\n": "(at line 1",
}  # fmt: skip


@pytest.mark.parametrize("text", MISTAKES)
def test_of_a_mistake_it_is_said_what_and_where(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, [CHECK], "sweep.toml")
    said = str(caught.value)
    assert said.startswith("sweep.toml: ") and MISTAKES[text] in said


@pytest.mark.parametrize(
    ("data", "said"),
    [(b"[sweep]\n\n# \xff\n", "line 3: not UTF-8"), (b"#" * (CONFIG_CAP + 1), f"longer than {CONFIG_CAP} bytes")],
)
def test_a_file_that_is_no_text_or_endless_is_refused(tmp_path: Path, data: bytes, said: str) -> None:
    (tmp_path / "sweep.toml").write_bytes(data)
    with pytest.raises(ConfigError) as caught:
        read_config(tmp_path / "sweep.toml", [CHECK])
    assert said in str(caught.value)
