"""Of a command line are shown what it runs and the names of its options, never a value."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.observer.census.titles import scheduler_job, title
from rankscope.probes.base.command_line import shown, without_passwords


@pytest.mark.parametrize("command, said", [
    (("python3", "-u", "/a/train.py", "--wandb-api-key=S", "--lr", "S", "S"), "python3 -u /a/train.py --wandb-api-key=… --lr …"),
    (("python", "-m", "pkg.train", "--flag", "--db", "postgres://u:S@db/x"), "python -m pkg.train --flag --db …"),
    (("python", "-X", "importtime", "train.py", "-pS", "-v"), "python -X importtime train.py -p… -v"),
    (("python", "-c", "key='S'", "S"), "python -c …"),
    (("/opt/trainer", "S", "--a.b_c-d", "key=S", "S="), "/opt/trainer … --a.b_c-d …"),
    (("python train.py --key=S", "", ""), "python train.py --key=…"),
    (("python", "https://u:S@host/train.py"), "python 'https://…@host/train.py'"),
    (("python", "a b.py"), "python 'a b.py'"),
    (("", ""), ""), ((), ""),
])  # fmt: skip
def test_names_of_options_and_no_values(command: tuple[str, ...], said: str) -> None:
    assert shown(command, 200) == said


@given(
    st.lists(st.sampled_from(["--key", "--key=", "-p", "-k=", "key=", "--a=b://u:", ""]), max_size=8),
    st.text(string.digits, min_size=6),
)
def test_no_value_is_ever_shown(options: list[str], value: str) -> None:
    words = tuple(
        option + value if option.endswith(("=", "p", ":", "k")) or not option else option for option in options
    )
    command = ("/usr/bin/python3", "train.py", *words, value, f"x://{value}@h")
    for text in (
        shown(command, 200),
        shown((" ".join(command),), 200),
        title(command, ""),
        title((" ".join(command),), ""),
    ):
        assert value not in text, text


def test_passwords_in_urls() -> None:
    assert without_passwords("to s3://KEY:SE@CRET@store/x and http://h/a@b") == "to s3://…@store/x and http://h/a@b"
    assert scheduler_job({"SLURM_JOB_ID": "1", "SLURM_JOB_NAME": "db://u:p@h"}) == "slurm 1 db://…@h"
    assert title(("trainer=S",), "") == "trainer"
