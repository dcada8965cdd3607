"""What a machine must offer before a device can be driven from user space: one small check for each condition, over the files of the kernel.

    findings = examine(Scene.of(AMD), checks_for(AMD))

Looking changes nothing, runs nothing, and wakes no device. Every finding says what was read, why it matters, and what to do.
"""
