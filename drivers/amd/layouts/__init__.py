"""Binary layouts and numbers that an AMD GPU and its driver share: structures, command ids, id tables. Facts only, no logic,
so that drivers, mocks and tools may all import them.

discovery   the table in which a GPU lists its blocks        psp   boot loader, ring, commands
smu         messages, clocks, metrics table                  ih    interrupt entries, clients, sources
mqd         descriptor of a compute queue

The `*.tbl` files are made by `generate.py` from fact tables.
"""
