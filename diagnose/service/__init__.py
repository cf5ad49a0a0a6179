"""The always-on service: notice trouble by tier 0, record a window, judge it, report it once, keep the data."""
