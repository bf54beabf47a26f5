"""What the driver's statuses mean, in plain words: what usually causes each, and what cures it.

The driver's own sentence says what happened ("invalid argument"); a line here says where to look.
"""

from __future__ import annotations

_KERNEL = "a kernel, this one or one before it,"
_LOST = "the context is lost: restart the process; compute-sanitizer names the instruction"

EXPLANATIONS: dict[str, str] = {
    "CUDA_ERROR_INVALID_VALUE": (
        "a value is out of range: the grid, more threads than the kernel was compiled for, or more shared memory than the device allows"
    ),
    "CUDA_ERROR_OUT_OF_MEMORY": ("free arrays, or call cupy.get_default_memory_pool().free_all_blocks(), and try again"),
    "CUDA_ERROR_NOT_INITIALIZED": ("if this process was forked after CUDA had started, start workers with the 'spawn' method instead"),
    "CUDA_ERROR_NO_DEVICE": "no GPU is visible: look at nvidia-smi and CUDA_VISIBLE_DEVICES",
    "CUDA_ERROR_INVALID_DEVICE": "no GPU has that number; CUDA_VISIBLE_DEVICES renumbers from 0",
    "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH": "the driver was updated while it was in use: reboot",
    "CUDA_ERROR_INVALID_CONTEXT": ("the stream belongs to another device than the arrays, or its context was destroyed"),
    "CUDA_ERROR_INVALID_HANDLE": ("the stream was destroyed, or belongs to another device than the arrays"),
    "CUDA_ERROR_NO_BINARY_FOR_GPU": ("the code was built for another architecture than this GPU's: sm_90a runs on Hopper alone"),
    "CUDA_ERROR_INVALID_IMAGE": "the code is damaged: dgnumba cache clear",
    "CUDA_ERROR_INVALID_PTX": "the driver's own assembler refused the kernel's PTX",
    "CUDA_ERROR_UNSUPPORTED_PTX_VERSION": (
        "the compiler is newer than the driver: update the driver, or install NVIDIA's compiler wheels of the driver's version"
    ),
    "CUDA_ERROR_JIT_COMPILER_NOT_FOUND": ("the driver comes without its own assembler: pip install nvidia-cuda-nvcc"),
    "CUDA_ERROR_NOT_FOUND": "the code has no kernel of that name: dgnumba cache clear",
    "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES": ("threads times registers, or shared memory, exceed what one multiprocessor has"),
    "CUDA_ERROR_INVALID_CLUSTER_SIZE": ("the device cannot hold a cluster of that size with that much shared memory"),
    "CUDA_ERROR_ILLEGAL_ADDRESS": f"{_KERNEL} went outside its memory; {_LOST}",
    "CUDA_ERROR_MISALIGNED_ADDRESS": f"{_KERNEL} used a misaligned address; {_LOST}",
    "CUDA_ERROR_ILLEGAL_INSTRUCTION": f"{_KERNEL} met an instruction the GPU refuses; {_LOST}",
    "CUDA_ERROR_LAUNCH_FAILED": f"{_KERNEL} died; {_LOST}",
    "CUDA_ERROR_LAUNCH_TIMEOUT": f"{_KERNEL} ran longer than the system lets it; {_LOST}",
    "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED": ("call once before the capture, so that nothing is left to load or to allocate in it"),
    "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT": ("the default stream cannot take part in a capture: make another stream current"),
    "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED": ("an earlier call broke the capture: call everything once before capturing"),
    "CUDA_ERROR_NOT_SUPPORTED": "this GPU or driver lacks what the kernel asks for",
}


def explain(name: str) -> str:
    """Our line on a driver status, by its name; empty where the driver's own words do."""
    return EXPLANATIONS.get(name, "")
