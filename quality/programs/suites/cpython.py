"""cpython.py RESULTS WITHOUT MODULE...: runs the tests of CPython's modules in a process that keeps a ring, on which it has made a request, wherever it may
have one. Writes a line for each test to the file RESULTS; leaves out those whose names contain WITHOUT."""

import ctypes
import mmap
import sys
import unittest
from test import support

SETUP, ENTER = 425, 426


def keep_ring():
    library = ctypes.CDLL(None, use_errno=True)
    library.syscall.restype = ctypes.c_long
    library.mmap.restype = ctypes.c_void_p
    # struct io_uring_params, of 32-bit words.
    params = (ctypes.c_uint32 * 30)()
    fd = library.syscall(SETUP, 8, params)
    if fd < 0:
        return

    def mapped(length, offset):
        access, shared = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED
        address = library.mmap(None, ctypes.c_size_t(length), access, shared, fd, ctypes.c_long(offset))
        assert address != ctypes.c_void_p(-1).value
        return address

    ring = mapped(params[16] + params[0] * 4, 0)
    # Zeros are a request that does nothing, and entry 0 is the first.
    mapped(params[0] * 64, 0x10000000)
    ctypes.c_uint32.from_address(ring + params[11]).value = 1
    assert library.syscall(ENTER, fd, 1, 1, 1, None, ctypes.c_long(0)) == 1


class Result(unittest.TextTestResult):
    """The result of all tests, of which each has a line in a file."""

    def note(self, test, outcome):
        print(test.id(), outcome, file=results, flush=True)

    def addSuccess(self, test):
        super().addSuccess(test)
        self.note(test, "passed")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.note(test, "skipped")

    def addExpectedFailure(self, test, error):
        super().addExpectedFailure(test, error)
        self.note(test, "passed")

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self.note(test, "failed")

    def addError(self, test, error):
        super().addError(test, error)
        self.note(test, "failed")

    def addSubTest(self, test, part, error):
        super().addSubTest(test, part, error)
        if error:
            self.note(test, "failed")

    def addUnexpectedSuccess(self, test):
        super().addUnexpectedSuccess(test)
        self.note(test, "failed")


def each(suite):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from each(test)
        else:
            yield test


if __name__ == "__main__":
    _, path, without, *modules = sys.argv
    keep_ring()
    # Nothing outside of this machine.
    support.use_resources = []
    support.verbose = 1
    all_tests = unittest.defaultTestLoader.loadTestsFromNames(modules)
    wanted = unittest.TestSuite(test for test in each(all_tests) if without not in test.id())
    with open(path, "w") as results:
        unittest.TextTestRunner(verbosity=2, resultclass=Result).run(wanted)
