"""The model of a step: differences between ranks, waiting, replays of steps, and functions of an
excess.
"""
