"""No fault: whoever is accused is accused wrongly."""

from labkit.faults.base import Fault, Truth


class NoFault(Fault):
    name = "none"

    def inject(self) -> Truth:
        return Truth(status="healthy", causes={})

    def revert(self) -> None:
        pass
