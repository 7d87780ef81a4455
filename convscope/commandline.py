"""What the command lines share: bad arguments are one line and exit code 2."""

from __future__ import annotations

import argparse
from typing import NoReturn


class OneLineParser(argparse.ArgumentParser):
    """Prints one line for bad arguments, exit code 2."""

    def error(self, message: str) -> NoReturn:
        """End the program with this message on one line."""
        self.exit(2, f"{self.prog}: {message} (--help lists the options)\n")
