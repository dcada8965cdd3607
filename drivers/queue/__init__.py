"""The queue model that all devices share. It knows words, memory windows and clocks, and no device.

    symbols   values filled in at submission            signals   16 bytes: a value and a time stamp
    builder   Queue: recorded commands                  timeline  the order of all work, with wrap-around
    ring      hardware rings and their doorbells        memory    argument ring, fixed division of a block
    copy      staging buffers, double buffered          graph     replay of a bound queue
    device    waiting, fault and hang detection, recovery
"""
