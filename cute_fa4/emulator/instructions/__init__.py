"""The meanings of PTX instructions, one module per family; importing this package registers them all."""

import importlib
import pkgutil

from cute_fa4.emulator.instructions.instruction_table import filling

with filling():
    for _module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{_module.name}")
