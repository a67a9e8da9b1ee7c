"""How large a message may be for the server that is there, and what is said of one that takes less than is wanted.

What is large by nature fits any server: blobs go in pieces, episodes as files (`bus.claims`). Below `NEEDED` even what
a run says every day would not pass; between that and `WANTED` only what is rare would not, such as a task's source of
megabytes.
"""

from bus import codec

HEADERS = 1024
"""The server counts a message's headers as well."""
NEEDED = 1024 * 1024
"""Bytes; the server's own default."""
WANTED = codec.MAX_BYTES + HEADERS
MEND = "start it with configs/nats.conf, or set max_payload: 8MB in its own config file (reloading is enough)"


def refused(max_payload: int) -> str:
    """Why a run can't use a server with this limit in bytes; "" when it can."""
    if max_payload >= NEEDED:
        return ""
    return f"takes messages of {max_payload} bytes at most; {NEEDED} are needed, 8 MB wanted: {MEND}"


def narrow(max_payload: int) -> str:
    """What a run must do without there, though it can be used; "" when nothing."""
    if max_payload >= WANTED:
        return ""
    return f"takes messages of {max_payload} bytes at most, 8 MB are wanted: what is larger and no episode is refused"
