"""What machine code a kernel became: its instructions by class, in all and in the innermost loop that uses the tensor cores."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..assemble import Cubin, find_tool
from ..errors import CompileError

CLASSES = (
    ("tensor cores", r"[A-Z]G?MMA"),
    ("TMA", r"UTMA\w*|UBLKCP|UBLKPF|UBLKRED"),
    (
        "barriers and waits",
        r"SYNCS|BAR|WARPSYNC|WARPGROUP\w*|DEPBAR|MEMBAR|FENCE|ERRBAR|CGAERRBAR|CCTL|UCGABAR\w*|NANOSLEEP|LDGDEPBAR|ARRIVES|B2R|R2B|ACQBULK|YIELD",
    ),
    ("spills", r"LDL|STL"),
    ("shared memory", r"LDS\w*|STS\w*|ATOMS\w*|STAS|REDAS"),
    ("global memory", r"LDG|STG|LD|ST|ATOM|ATOMG|RED|LDGSTS"),
    ("conversions", r"F2\w+|I2\w+|FRND|HADD2"),
    ("float", r"F(?:FMA|MUL|ADD|MNMX|SETP|SEL|CHK|SET)\w*|MUFU|H(?:FMA|MUL)2\w*|D(?:FMA|MUL|ADD|SETP)"),
    ("shuffles", r"SHFL|VOTE\w*|REDUX|MATCH"),
    ("control", r"BRA|BRX|JMP|CALL|RET|EXIT|BSSY|BSYNC|BREAK|NOP|PLOP3|ELECT|UPLOP3|USETMAXREG|BPT|WARPSYNC|KILL|PREEXIT"),
)  # fmt: skip
"""Class -> pattern of a whole opcode, without its suffixes; what is left is integer arithmetic, addresses and moves."""
REST = "integers, addresses, moves"

_CLASSES = [(name, re.compile(rf"(?:{pattern})\Z")) for name, pattern in CLASSES]
_LINE = re.compile(r"\s*/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)([.\w]*)([^;]*);")
_LABEL = re.compile(r"\s*(\.L_x_\d+):")
_TARGET = re.compile(r"\((\.L_x_\d+)\)")


@dataclass(frozen=True)
class Mix:
    """Instructions by class.

    total  of the whole kernel, as written (not as executed)
    loop   of the innermost loop that holds tensor-core instructions; empty where there is none
    """

    total: Counter[str]
    loop: Counter[str]

    def table(self) -> list[tuple[str, int, int]]:
        """(class, in the kernel, in the loop), the most frequent first."""
        return [(name, count, self.loop[name]) for name, count in self.total.most_common()]


def disassemble(cubin: Cubin) -> str:
    """The SASS text of a kernel.

    Raises:
        CompileError: it is PTX yet, or neither nvdisasm nor cuobjdump is here; or they refuse.
    """
    if cubin.is_ptx:
        raise CompileError("SASS: expected machine code, got PTX, which the driver has yet to assemble; pip install nvidia-cuda-nvcc")
    for name, options in (("nvdisasm", ["-c"]), ("cuobjdump", ["-sass"])):
        tool = find_tool(name)
        if tool is not None:
            return _run(tool, options, cubin.code)
    raise CompileError("SASS: expected nvdisasm or cuobjdump, got neither; pip install nvidia-cuda-nvdisasm, or set CUDA_HOME")


def _run(tool: Path, options: Sequence[str], code: bytes) -> str:
    with tempfile.TemporaryDirectory(prefix="dgnumba-") as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(code)
        done = subprocess.run([str(tool), *options, str(path)], capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        raise CompileError(f"{tool.name} refused the kernel (status {done.returncode})", done.stderr)
    return done.stdout


def class_of(opcode: str) -> str:
    """The class of an opcode, as "QGMMA".

    >>> class_of("QGMMA"), class_of("FFMA"), class_of("IMAD")
    ('tensor cores', 'float', 'integers, addresses, moves')
    """
    return next((name for name, pattern in _CLASSES if pattern.match(opcode)), REST)


def mix(sass: str) -> Mix:
    """Count a disassembly by class.

    >>> mix("/*0000*/ IMAD R1, R2 ;").total
    Counter({'integers, addresses, moves': 1})
    """
    opcodes: list[str] = []
    labels: dict[str, int] = {}
    branches: list[tuple[int, str]] = []
    addresses: dict[int, int] = {}
    for line in sass.splitlines():
        label = _LABEL.match(line)
        if label:
            labels[label[1]] = len(opcodes)
        found = _LINE.match(line)
        if found is None:
            continue
        addresses[int(found[1], 16)] = len(opcodes)
        if found[2] == "BRA":
            target = _TARGET.search(found[4])
            hexadecimal = re.search(r"0x([0-9a-f]+)", found[4])  # cuobjdump names addresses
            branches.append((len(opcodes), target[1] if target else f"0x{hexadecimal[1]}" if hexadecimal else ""))
        opcodes.append(found[2])
    labels |= {f"0x{address:x}": index for address, index in addresses.items()}
    loops = [(labels[target], end) for end, target in branches if labels.get(target, end) < end]
    tensor = [i for i, opcode in enumerate(opcodes) if class_of(opcode) == "tensor cores"]
    inner = [(first, end) for first, end in loops if any(first <= i <= end for i in tensor)]
    first, end = min(inner, key=lambda loop: loop[1] - loop[0], default=(0, -1))
    count = Counter(map(class_of, opcodes))
    return Mix(count, Counter(map(class_of, opcodes[first : end + 1])))


def mix_of(cubin: Cubin) -> Mix:
    """The mix of a compiled kernel; raises as `disassemble`."""
    return mix(disassemble(cubin))
