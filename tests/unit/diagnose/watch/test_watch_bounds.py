"""What the service hands on is bounded by user, and holds no key."""

from __future__ import annotations

import time

from rankscope.diagnose.service.tell import otlp
from rankscope.diagnose.service.tell.metrics import NAMES_EACH, NAMES_MOST, Names

DAY_S = 86400.0


def test_who_renames_a_job_every_minute_gets_so_many_series_a_day_and_others_theirs() -> None:
    names = Names()
    came = [names.has_room(f"job-{minute}", "user 1000", 60.0 * minute) for minute in range(1000)]
    assert came == [True] * NAMES_EACH + [False] * (1000 - NAMES_EACH)
    assert names.has_room("job-3", "user 1000", 60.0 * 1000) and not names.has_room("job-500", "user 1000", 60.0 * 1000)
    assert names.has_room("job-500", "user 1001", 60.0 * 1000)
    assert names.has_room("job-500", "user 1000", DAY_S)  # what came first is dropped
    assert not names.has_room("job-501", "user 1000", DAY_S)


def test_nobody_fills_it_as_many_users() -> None:
    names = Names()
    assert sum(names.has_room("job", f"user {uid}", 0.0) for uid in range(2 * NAMES_MOST)) == NAMES_MOST
    assert names.has_room("job", "user -1", DAY_S)


def test_an_error_of_the_network_says_no_address() -> None:
    secret = "api-key=c0ffee"
    try:
        try:
            raise ConnectionRefusedError(111, "Connection refused")
        except OSError as error:
            raise RuntimeError(f"HTTPConnectionPool(host='h', port=1): url: /v1/metrics?{secret}") from error
    except RuntimeError as error:
        assert otlp._why(error) == "RuntimeError: Connection refused"
    assert otlp._why(ValueError(f"http://user:{secret}@h")) == "ValueError"


def test_the_real_exporter_s_error_says_no_key() -> None:
    exporter = otlp.Otlp("http://user:c0ffee@127.0.0.1:9/v1/metrics?api-key=c0ffee", "node", timeout_s=1.0)
    try:
        exporter.send([])
        deadline, said = time.monotonic() + 20, ""
        while not said and time.monotonic() < deadline:
            time.sleep(0.1)
            said = exporter.send([])
        assert said and "c0ffee" not in said
    finally:
        exporter.close()
