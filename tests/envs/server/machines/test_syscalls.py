"""The filter of system calls, run as the kernel runs it, and its numbers against libseccomp's."""

import ctypes
import ctypes.util
import struct

import pytest

from flywheel.envs.server.machines.xvfb.syscalls import DENIED, PROCESSORS, seccomp_filter

ALLOWED, REFUSED = 0x7FFF0000, 0x00050001


def verdict(program: bytes, number: int, audit: int) -> int:
    """Of one system call; classic BPF over `struct seccomp_data`, whose words are the number and the architecture."""
    instructions = list(struct.iter_unpack("=HBBI", program))
    accumulator = line = 0
    while True:
        code, if_true, if_false, value = instructions[line]
        match code:
            case 0x06:
                return int(value)
            case 0x20:
                accumulator = (number, audit)[value // 4]
                jump = 0
            case 0x15:
                jump = if_true if accumulator == value else if_false
            case 0x35:
                jump = if_true if accumulator >= value else if_false
            case _:
                raise AssertionError(f"not an instruction of ours: {code:#x}")
        line += 1 + jump


@pytest.mark.parametrize("name", PROCESSORS)
def test_what_is_listed_is_refused_and_nothing_else(name: str) -> None:
    program, processor = seccomp_filter(name), PROCESSORS[name]
    if program is None:
        pytest.skip("this kernel has no seccomp")
    denied = {pair[processor.column] for pair in DENIED.values()}
    for number in range(600):
        expected = REFUSED if number in denied else ALLOWED
        assert verdict(program, number, processor.audit) == expected, number


@pytest.mark.parametrize("name", PROCESSORS)
def test_other_architectures_are_refused_everything(name: str) -> None:
    program, processor = seccomp_filter(name), PROCESSORS[name]
    if program is None:
        pytest.skip("this kernel has no seccomp")
    i386 = 0x40000003
    assert {verdict(program, number, i386) for number in range(600)} == {REFUSED}
    assert verdict(program, 0x40000000 + 39, processor.audit) == REFUSED, "x32"


def test_a_processor_whose_numbers_are_not_known_gets_no_filter() -> None:
    assert seccomp_filter("riscv64") is None


@pytest.mark.parametrize("name", PROCESSORS)
def test_the_numbers_are_those_of_libseccomp(name: str) -> None:
    found = ctypes.util.find_library("seccomp")
    if found is None:
        pytest.skip("libseccomp is not installed")
    resolve = ctypes.CDLL(found).seccomp_syscall_resolve_name_arch
    processor = PROCESSORS[name]
    audit = ctypes.c_uint32(processor.audit)
    theirs = {call: resolve(audit, call.encode()) for call in DENIED}
    # What an architecture lacks has a negative number of libseccomp's own.
    assert {call: number if number >= 0 else None for call, number in theirs.items()} == {
        call: pair[processor.column] for call, pair in DENIED.items()
    }
