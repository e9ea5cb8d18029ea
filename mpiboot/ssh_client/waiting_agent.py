"""What a launch agent becomes while its session runs: a program of 12 KiB in place of a shell.

A shell that waits has 105 to 140 KiB of its own, for what the C library and the environment take:
with 1,000 hosts more than all the rest of a launcher. So the agent's shell becomes this program
(``exec``) when its session has begun. It is a static one without any library, small enough to be
carried as what ``as`` makes of ``scripts/waiting_agent/MACHINE.s``, where its work is described: it
waits for a status or a signal, lets go of the environment's memory, and says the agent's last word.

It is tried before any agent finds it. Where it can't run (another machine, a folder that is
mounted noexec, a sandbox without one of its seven system calls) shells wait, as they can.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Final

from mpiboot.ssh_client.session import FAILED

# The agent looks for it by this name, in the launch folder.
NAME: Final = "waiting_agent"
# By the machine's name, uname(2): its number in an ELF file, elf(5), and the code.
CODE: Final = {
    "x86_64": (
        62,
        bytes.fromhex(
            "488d6c24184c8b65204c8b6d284881ecc0000000b80e00000031ff488d359901000031d241ba0800"
            "00000f05b8210100004883cfff488d357f010000ba080000004531d20f054189c7bffe00000085c0"
            "0f8857010000b81c000000488b7d384881c7001000004881e700f0ffffbe00008000ba040000000f"
            "05c7042409000000c74424040100000044897c2408c744240c01000000b80f0100004889e7be0200"
            "000031d24531d241b8080000000f0585c078e266837c240600753431c04489ff488d742440ba8000"
            "00000f054c8b65184c8b6d20b801000000bf08000000488b7508488b5510e8c90000000f05eba631"
            "c0bf09000000488d742440ba800000000f05488d5c24404189c683f8017f38488d1dad00000041be"
            "04000000b802000000488b7d28be41040000ba800100000f0589c7b801000000488b7530488b5538"
            "e86f0000000f05488b7510488b5518e8600000004889742410488954241841ffce48895c24204c89"
            "7424284c89e64c89eae83e00000048897424304889542438b814000000bf07000000488d742410ba"
            "030000000f0531ff0fb60b83e93083f909770a6bff0a01cf48ffc3ebebb8e70000000f054829f248"
            "ffcac3074a0000000000003235350a"
        ),
    ),
    "aarch64": (
        183,
        bytes.fromhex(
            "f4630091955a42a9ff0303d1e81080d2000080d2e10b0010020080d2030180d2010000d4480980d2"
            "00008092210b0010020180d2030080d2010000d4f70300aad81f8052a009f8b7281d80d2801e40f9"
            "0004409100cc74920110a0d2820080d2010000d4290180522a008052e92b0029f72b0129280980d2"
            "e0030091410080d2020080d2030080d2040180d2010000d420ffffb7e90f4079a9010035e80780d2"
            "e00317aae1030191021080d2010000d495da41a9080880d2000180d2818a40a931000094010000d4"
            "ebffff17e80780d2200180d2e1030191021080d2010000d4f9030191fa0300aa1f0400f1ac010054"
            "590500109a0080d2080780d2600c8092811640f9228880d2033080d2010000d4080880d2810a43a9"
            "1b000094010000d4810a41a918000094e10b01a95a0700d1f96b02a9e10315aae20316aa12000094"
            "e10b03a9480880d2e00080d2e1430091620080d2010000d4180080524a0180522917403829c10051"
            "3f2500716800005418270a1bfbffff17c80b80d2e003182a010000d4420001cb420400d1c0035fd6"
            "074a0000000000003235350a"
        ),
    ),
}
_BASE: Final = 0x400000
_HEADERS: Final = 64 + 2 * 56
# Pages of up to 64 KiB.
_ALIGN: Final = 1 << 16


def program(machine: str) -> bytes:
    """Give the program's file; empty for a machine that has none.

    One segment, which is never written to, and a stack that is no code, elf(5).
    """
    if machine not in CODE:
        return b""
    number, code = CODE[machine]
    size = _HEADERS + len(code)
    ident = b"\x7fELF\2\1\1".ljust(16, b"\0")
    entry = _BASE + _HEADERS
    # ET_EXEC; the program headers follow at once; no sections.
    head = struct.pack("<HHIQQQIHHHHHH", 2, number, 1, entry, 64, 0, 0, 64, 56, 2, 0, 0, 0)
    # PT_LOAD, PF_R | PF_X
    load = struct.pack("<IIQQQQQQ", 1, 5, 0, _BASE, _BASE, size, size, _ALIGN)
    # PT_GNU_STACK, PF_R | PF_W
    stack = struct.pack("<IIQQQQQQ", 0x6474E551, 6, 0, 0, 0, 0, 0, 16)
    return ident + head + load + stack + code


def write(folder: Path) -> None:
    """Have the agents of a launch folder find it, where it runs here.

    Raises:
        OSError: the folder can't be written.
    """
    code = program(os.uname().machine)
    if not code:
        return
    path = folder / f".{NAME}"
    path.write_bytes(code)
    path.chmod(0o700)
    if _works(path):
        path.rename(folder / NAME)
    else:
        path.unlink()


def _works(path: Path) -> bool:
    """Let it wait once, for a client that has gone."""
    null, mode = os.devnull, os.O_RDWR
    actions = [(os.POSIX_SPAWN_OPEN, file, null, mode, 0) for file in (7, 8, 9)]
    try:
        pid = os.posix_spawn(path, [str(path), *9 * ("",)], {}, file_actions=actions)
    except OSError:
        return False
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == FAILED
