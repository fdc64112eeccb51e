"""io_uring that runs anywhere.

This package brings the command ``anyring``: ``anyring run -- python3 app.py`` runs a program of io_uring where io_uring
is forbidden. In Python there is one function, which says what became of that.
"""

import ctypes
from typing import Optional

__all__ = ["engine"]


def engine() -> Optional[str]:
    """Which engine answers the io_uring calls of this process.

    ``"user"`` is anyring's engine, ``"kernel"`` the kernel's, and ``"kernel+user"`` says that each has rings of its own.
    ``None``: this process was not started by ``anyring run``, or by one that leaves it alone; the kernel answers, if it does.
    """
    try:
        ask = ctypes.CDLL(None).anyring_engine
    except AttributeError:
        return None
    ask.restype = ctypes.c_char_p
    return ask().decode()
