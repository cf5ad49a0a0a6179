"""Ordinary jobs of many frameworks, started as their users start them, as witnesses of what rankscope says about them."""
