"""What a call's kernel is made of, and which ceiling it meets: occupancy, instruction mix, accesses, measured ceilings, a verdict in one sentence."""

from .accesses import Accesses, accesses
from .occupancy import Occupancy, occupancy
from .sass import Mix, disassemble, mix, mix_of
from .verdict import Measured, verdict

__all__ = ["Accesses", "Measured", "Mix", "Occupancy", "accesses", "disassemble", "mix", "mix_of", "occupancy", "verdict"]
