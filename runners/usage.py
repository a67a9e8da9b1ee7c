"""What a person at the keyboard can mend."""

import argparse
import difflib
import re
from typing import NoReturn

_FLAG = re.compile(r"argument (--[\w-]+): ignored explicit argument ('[^']*')$")
_CHOICE = re.compile(r"invalid choice: '([^']*)' \(choose from (.*)\)$", re.DOTALL)


class UsageError(Exception):
    """The text is one line: what was got, what was wanted, what to do. The exit code is 2."""


def not_negative(text: str) -> int:
    """An option's whole number from 0 on."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"got {text!r}, wanted a whole number from 0 on")
    return int(text)


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, with the nearest known word, and where the options are listed; its subparsers
    do as well."""

    def error(self, message: str) -> NoReturn:
        nearest = ""
        if found := _FLAG.match(message):
            message = f"{found[1]} takes no value, got {found[2]}"
        if found := _CHOICE.search(message):
            near = difflib.get_close_matches(found[1], re.findall(r"[\w-]+", found[2]), n=1)
            nearest = f"; did you mean {near[0]}?" if near else ""
        self.exit(2, f"{self.prog}: {' '.join(message.split())}{nearest} (`{self.prog} --help` lists what there is)\n")
