"""Mutants that change nothing that anybody could see, and why: by file and what becomes of it."""

from __future__ import annotations

EQUIVALENT: dict[str, str] = {}
