"""System calls by their numbers, as far as a rank may wait in one. Pure."""

from __future__ import annotations

from typing import Final


def _table(text: str) -> dict[int, str]:
    pairs = (item.split() for item in text.split(", "))
    return {int(number): name for number, name in pairs}


# The kernel's tables: arch/x86/entry/syscalls/syscall_64.tbl and, of aarch64, the generic one in
# include/uapi/asm-generic/unistd.h.
_X86_64: Final = _table(
    "0 read, 1 write, 2 open, 3 close, 4 stat, 5 fstat, 6 lstat, 7 poll, 16 ioctl, 17 pread, 18 "
    "pwrite, 19 readv, 20 writev, 23 select, 24 sched_yield, 34 pause, 35 nanosleep, 42 connect, "
    "43 accept, 44 sendto, 45 recvfrom, 46 sendmsg, 47 recvmsg, 61 wait4, 72 fcntl, 73 flock, 74 "
    "fsync, 75 fdatasync, 77 ftruncate, 130 rt_sigsuspend, 202 futex, 217 getdents, 219 "
    "restart_syscall, 230 clock_nanosleep, 232 epoll_wait, 247 waitid, 257 openat, 262 stat, 270 "
    "select, 271 poll, 281 epoll_wait, 285 fallocate, 332 statx"
)
_AARCH64: Final = _table(
    "22 epoll_wait, 25 fcntl, 29 ioctl, 32 flock, 46 ftruncate, 47 fallocate, 56 openat, 57 "
    "close, 61 getdents, 63 read, 64 write, 65 readv, 66 writev, 67 pread, 68 pwrite, 72 select, "
    "73 poll, 79 stat, 80 fstat, 82 fsync, 83 fdatasync, 95 waitid, 98 futex, 101 nanosleep, 115 "
    "clock_nanosleep, 124 sched_yield, 128 restart_syscall, 133 rt_sigsuspend, 202 accept, 203 "
    "connect, 206 sendto, 207 recvfrom, 211 sendmsg, 212 recvmsg, 260 wait4, 291 statx"
)
_TABLES: Final = {"x86_64": _X86_64, "aarch64": _AARCH64}

_OF_FILES: Final = (
    "read write close fstat pread pwrite readv writev fcntl flock fsync fdatasync ftruncate "
    "fallocate getdents"
)
_OF_SOCKETS: Final = "ioctl connect accept sendto recvfrom sendmsg recvmsg"
# Calls whose first argument is the open file that they are for.
WITH_FILE: Final = frozenset(f"{_OF_FILES} {_OF_SOCKETS}".split())
# Calls that ask a file system, also where no file is open yet.
OF_FILE_SYSTEMS: Final = frozenset(f"{_OF_FILES} open openat stat lstat statx".split())
SLEEPS: Final = frozenset({"nanosleep", "clock_nanosleep", "pause", "rt_sigsuspend"})


def name(machine: str, number: int) -> str:
    """Name a call; where the table has none, by its number."""
    return _TABLES.get(machine, {}).get(number, f"system call {number}")
