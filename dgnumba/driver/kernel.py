"""Code that is loaded into the driver."""

from __future__ import annotations

import threading
from typing import Any

from .context import api, check, failure

_LOG_BYTES = 16384


class Kernel:
    """A kernel of loaded code; it belongs to no context, so that one serves every device.

    code    a cubin, or PTX text, which the driver then assembles itself
    entry   the kernel's name in it
    """

    def __init__(self, code: bytes, entry: str) -> None:
        cuda = api()
        option = cuda.CUjit_option
        is_ptx = not code.startswith(b"\x7fELF")
        log = bytearray(_LOG_BYTES)
        options = {
            option.CU_JIT_ERROR_LOG_BUFFER: log,
            option.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES: len(log),
        }
        keys, values = (list(options), list(options.values())) if is_ptx else ([], [])
        # NOTE: loaded as it is, never through nvJitLink: the linker takes PTX as relocatable,
        # ignores setmaxnreg, and serialises every wgmma of a kernel with a 64-bit division.
        image = code + b"\0" if is_ptx else code
        status, library = cuda.cuLibraryLoadData(image, keys, values, len(keys), [], [], 0)
        if status:
            said = log.split(b"\0")[0].decode(errors="replace").strip()
            raise failure(status, f"loading {entry}" + (f"\n{said}\n" if said else ""))
        self.entry = entry
        self.handle = check(cuda.cuLibraryGetKernel(library, entry.encode()), f"finding {entry}")
        self.function = cuda.CUfunction(int(self.handle))
        self._lock = threading.Lock()
        self._smem: dict[int, int] = {}

    def __repr__(self) -> str:
        return f"Kernel({self.entry})"

    def prepare(self, device: int, smem: int, cluster_size: int) -> None:
        """Allow launches on `device` with `smem` dynamic shared bytes and `cluster_size` CTAs.

        Setting the attribute also loads the code onto the device, so that a first launch under
        stream capture finds it there.
        """
        cuda = api()
        keys = cuda.CUfunction_attribute
        with self._lock:
            if smem > self._smem.get(device, -1):
                key = keys.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                doing = f"{self.entry}: asking device {device} for {smem} bytes of shared memory"
                check(cuda.cuKernelSetAttribute(key, smem, self.handle, device), doing)
                self._smem[device] = smem
            if cluster_size > 8:
                key = keys.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
                doing = f"{self.entry}: allowing clusters of {cluster_size} on device {device}"
                check(cuda.cuKernelSetAttribute(key, 1, self.handle, device), doing)

    def in_context(self, context: Any) -> int:
        """The kernel's handle in a context, which a launch there need not look up: 0.5 us less (H200, 2026-11-30). Some context must be current."""
        cuda = api()
        before = check(cuda.cuCtxGetCurrent(), "reading the current context")
        check(cuda.cuCtxSetCurrent(context), f"making the context of {self.entry} current")
        try:
            return int(check(cuda.cuKernelGetFunction(self.handle), f"finding {self.entry} in its context"))
        finally:
            check(cuda.cuCtxSetCurrent(before), "going back to the caller's context")
