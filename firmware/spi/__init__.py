"""Serial flash: controllers that carry SPI transactions, chips as rows of a table, and the careful ways of reading and writing them.

Controllers (`rom_sw`) know no chip, chips (`chips`, `flash`) know no controller; `rom_index` reads without either.
"""
