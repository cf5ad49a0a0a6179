"""What is known of each user: of so many, whoever they are."""

from __future__ import annotations

from rankscope.observer.watch.users import USERS_KNOWN, OfUsers


def test_a_crowd_of_users_drives_out_only_who_was_met_longest_ago() -> None:
    known: OfUsers[int] = OfUsers()
    for number in range(USERS_KNOWN):
        known.keep(f"user {number}", number)
    known.keep("user 0", -1)  # met again
    for number in range(10):
        known.keep(f"crowd {number}", number)
    assert len(known) == USERS_KNOWN
    assert [known.get(f"user {number}", None) for number in (0, 1, 10, 11)] == [-1, None, None, 11]  # type: ignore[arg-type]
