"""What a person at the keyboard can mend."""


class UsageError(Exception):
    """The text is one line: what was got, what was wanted, what to do. The exit code is 2."""
